// A HIP library and a hiprtc that note how they are called, by the signatures of ROCm 6's `hip_runtime_api.h`, written
// down here anew. They keep memory of the host, and fail where they are told to.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

std::string noted;
std::map<std::string, int> failures;
size_t capacity = 1 << 20, used = 0;
std::map<void*, size_t> blocks;
uintptr_t last_handle = 0x7f0000001000;  // above 32 bits: a handle that is cut shows

int called(const char* name, const std::string& arguments) {
  noted += std::string(name) + "(" + arguments + ")\n";
  auto found = failures.find(name);
  if (found == failures.end()) return 0;
  const int code = found->second;
  failures.erase(found);
  return code;
}

std::string text(const void* handle) {
  char buffer[32];
  snprintf(buffer, sizeof buffer, "0x%llx", (unsigned long long)(uintptr_t)handle);
  return buffer;
}

std::string text(unsigned long long number) { return std::to_string(number); }

template <class... Rest>
std::string list(Rest... rest) {
  std::string joined;
  ((joined += (joined.empty() ? "" : ", ") + text(rest)), ...);
  return joined;
}

void* made() { return (void*)(last_handle += 0x1000); }

}  // namespace

using Error = int;
using Handle = void*;
using Size = size_t;
using Unsigned = unsigned;

#define CALL(name, ...) \
  if (Error code = called(#name, list(__VA_ARGS__))) return code;

extern "C" {

const char* noted_calls() { return noted.c_str(); }
void forget_calls() { noted.clear(); }
void fail_next(const char* name, int code) { failures[name] = code; }
void set_capacity(size_t bytes) { capacity = bytes; }

const char* hipGetErrorName(Error code) {
  switch (code) {
    case 1: return "hipErrorInvalidValue";
    case 2: return "hipErrorOutOfMemory";
    case 98: return "hipErrorInvalidDeviceFunction";
    case 100: return "hipErrorNoDevice";
    case 209: return "hipErrorNoBinaryForGpu";
    case 719: return "hipErrorLaunchFailure";
    case 910: return "hipErrorGraphExecUpdateFailure";
  }
  return "hipErrorUnknown";
}

Error hipInit(Unsigned flags) { CALL(hipInit, (unsigned long long)flags) return 0; }
Error hipRuntimeGetVersion(int* version) { CALL(hipRuntimeGetVersion) *version = 60342133; return 0; }
Error hipGetDeviceCount(int* count) { CALL(hipGetDeviceCount) *count = 2; return 0; }
Error hipDeviceGetName(char* name, int length, int device) {
  CALL(hipDeviceGetName, (unsigned long long)length, (unsigned long long)device)
  snprintf(name, length, "Noted %d", device);
  return 0;
}

struct UniqueId { char bytes[16]; };
struct Architecture { unsigned flags; };
struct Properties {  // hipDeviceProp_tR0600
  char name[256]; UniqueId uuid; char luid[8]; unsigned luidDeviceNodeMask; size_t totalGlobalMem, sharedMemPerBlock;
  int regsPerBlock, warpSize; size_t memPitch; int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
  size_t totalConstMem; int major, minor; size_t textureAlignment, texturePitchAlignment;
  int deviceOverlap, multiProcessorCount, kernelExecTimeoutEnabled, integrated, canMapHostMemory, computeMode,
      maxTexture1D, maxTexture1DMipmap, maxTexture1DLinear, maxTexture2D[2], maxTexture2DMipmap[2],
      maxTexture2DLinear[3], maxTexture2DGather[2], maxTexture3D[3], maxTexture3DAlt[3], maxTextureCubemap,
      maxTexture1DLayered[2], maxTexture2DLayered[3], maxTextureCubemapLayered[2], maxSurface1D, maxSurface2D[2],
      maxSurface3D[3], maxSurface1DLayered[2], maxSurface2DLayered[3], maxSurfaceCubemap, maxSurfaceCubemapLayered[2];
  size_t surfaceAlignment;
  int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount,
      unifiedAddressing, memoryClockRate, memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize,
      maxThreadsPerMultiProcessor, streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID, hostNativeAtomicSupported,
      singleToDoublePrecisionPerfRatio, pageableMemoryAccess, concurrentManagedAccess, computePreemptionSupported,
      canUseHostPointerForRegisteredMem, cooperativeLaunch, cooperativeMultiDeviceLaunch;
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost, maxBlocksPerMultiProcessor,
      accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported, sparseHipArraySupported, hostRegisterReadOnlySupported, timelineSemaphoreInteropSupported,
      memoryPoolsSupported, gpuDirectRDMASupported;
  unsigned gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned memoryPoolSupportedHandleTypes;
  int deferredMappingHipArraySupported, ipcEventSupported, clusterLaunch, unifiedFunctionPointers, reserved[63],
      hipReserved[32];
  char gcnArchName[256];
  size_t maxSharedMemoryPerMultiProcessor;
  int clockInstructionRate;
  Architecture arch;
  unsigned *hdpMemFlushCntl, *hdpRegFlushCntl;
  int cooperativeMultiDeviceUnmatchedFunc, cooperativeMultiDeviceUnmatchedGridDim,
      cooperativeMultiDeviceUnmatchedBlockDim, cooperativeMultiDeviceUnmatchedSharedMem, isLargeBar, asicRevision;
};

Error hipGetDevicePropertiesR0600(Properties* properties, int device) {
  CALL(hipGetDevicePropertiesR0600, (unsigned long long)device)
  memset(properties, 0xA5, sizeof *properties);
  snprintf(properties->gcnArchName, 256, "%s", device ? "gfx1100" : "gfx90a:sramecc+:xnack-");
  return 0;
}

Error hipSetDevice(int device) { CALL(hipSetDevice, (unsigned long long)device) return 0; }
Error hipDeviceReset() { CALL(hipDeviceReset) return 0; }
Error hipDeviceSynchronize() { CALL(hipDeviceSynchronize) return 0; }
Error hipMemGetInfo(Size* free, Size* total) { CALL(hipMemGetInfo) *free = capacity - used; *total = capacity; return 0; }

Error hipStreamCreateWithFlags(Handle* stream, Unsigned flags) {
  CALL(hipStreamCreateWithFlags, (unsigned long long)flags) *stream = made(); return 0;
}
Error hipStreamSynchronize(Handle stream) { CALL(hipStreamSynchronize, stream) return 0; }
Error hipStreamWaitEvent(Handle stream, Handle event, Unsigned flags) {
  CALL(hipStreamWaitEvent, stream, event, (unsigned long long)flags) return 0;
}
Error hipEventCreateWithFlags(Handle* event, Unsigned flags) {
  CALL(hipEventCreateWithFlags, (unsigned long long)flags) *event = made(); return 0;
}
Error hipEventRecord(Handle event, Handle stream) { CALL(hipEventRecord, event, stream) return 0; }
Error hipEventQuery(Handle event) { CALL(hipEventQuery, event) return 0; }
Error hipEventSynchronize(Handle event) { CALL(hipEventSynchronize, event) return 0; }
Error hipEventElapsedTime(float* ms, Handle first, Handle last) {
  CALL(hipEventElapsedTime, first, last) *ms = 0.25f; return 0;
}
Error hipEventDestroy(Handle event) { CALL(hipEventDestroy, event) return 0; }

struct PoolProperties {  // hipMemPoolProps
  int allocType, handleTypes; struct { int type, id; } location; void* security; size_t maxSize; unsigned char reserved[56];
};
Error hipMemPoolCreate(Handle* pool, const PoolProperties* wanted) {
  unsigned rest = 0;
  for (unsigned char byte : wanted->reserved) rest |= byte;
  CALL(hipMemPoolCreate, (unsigned long long)wanted->allocType, (unsigned long long)wanted->handleTypes,
       (unsigned long long)wanted->location.type, (unsigned long long)wanted->location.id, wanted->security,
       (unsigned long long)wanted->maxSize, (unsigned long long)rest)
  *pool = made();
  return 0;
}
Error hipMemPoolSetAttribute(Handle pool, int attribute, void* value) {
  CALL(hipMemPoolSetAttribute, pool, (unsigned long long)attribute, (unsigned long long)*(uint64_t*)value) return 0;
}
Error hipMemPoolTrimTo(Handle pool, Size bytes) { CALL(hipMemPoolTrimTo, pool, (unsigned long long)bytes) return 0; }
Error hipMallocFromPoolAsync(Handle* pointer, Size bytes, Handle pool, Handle stream) {
  CALL(hipMallocFromPoolAsync, (unsigned long long)bytes, pool, stream)
  if (used + bytes > capacity) return 2;
  used += bytes;
  blocks[*pointer = malloc(bytes)] = bytes;
  return 0;
}
Error hipFreeAsync(Handle pointer, Handle stream) {
  CALL(hipFreeAsync, pointer, stream)
  auto found = blocks.find(pointer);
  if (found == blocks.end()) return 1;
  used -= found->second;
  blocks.erase(found);
  free(pointer);
  return 0;
}
Error hipHostMalloc(Handle* pointer, Size bytes, Unsigned flags) {
  CALL(hipHostMalloc, (unsigned long long)bytes, (unsigned long long)flags) *pointer = malloc(bytes); return 0;
}
Error hipHostFree(Handle pointer) { CALL(hipHostFree, pointer) free(pointer); return 0; }

Error hipMemcpyHtoDAsync(Handle target, Handle source, Size bytes, Handle stream) {
  CALL(hipMemcpyHtoDAsync, (unsigned long long)bytes, stream) memcpy(target, source, bytes); return 0;
}
Error hipMemcpyDtoHAsync(Handle target, Handle source, Size bytes, Handle stream) {
  CALL(hipMemcpyDtoHAsync, (unsigned long long)bytes, stream) memcpy(target, source, bytes); return 0;
}
Error hipMemcpyDtoDAsync(Handle target, Handle source, Size bytes, Handle stream) {
  CALL(hipMemcpyDtoDAsync, (unsigned long long)bytes, stream) memcpy(target, source, bytes); return 0;
}

std::map<Handle, const char*> images;  // as they were given: what is behind them may change until a module is unloaded

Error hipModuleLoadData(Handle* module, const void* image) {
  CALL(hipModuleLoadData, (unsigned long long)((const unsigned char*)image)[5])
  images[*module = made()] = (const char*)image;
  return 0;
}
const char* image_of(Handle module) { return images[module]; }
Error hipModuleUnload(Handle module) { CALL(hipModuleUnload, module) return 0; }
Error hipModuleGetFunction(Handle* function, Handle module, const char* name) {
  if (Error code = called("hipModuleGetFunction", list(module) + ", " + name)) return code;
  *function = made();
  return 0;
}
Error hipModuleLaunchKernel(Handle function, Unsigned gx, Unsigned gy, Unsigned gz, Unsigned bx, Unsigned by, Unsigned bz,
                            Unsigned shared, Handle stream, void** parameters, void** extra) {
  CALL(hipModuleLaunchKernel, function, (unsigned long long)gx, (unsigned long long)gy, (unsigned long long)gz,
       (unsigned long long)bx, (unsigned long long)by, (unsigned long long)bz, (unsigned long long)shared, stream,
       *(void**)parameters[0], (unsigned long long)*(uint64_t*)parameters[1], (void*)extra)
  return 0;
}

Error hipStreamBeginCapture(Handle stream, int mode) {
  CALL(hipStreamBeginCapture, stream, (unsigned long long)mode) return 0;
}
Error hipStreamEndCapture(Handle stream, Handle* graph) { CALL(hipStreamEndCapture, stream) *graph = made(); return 0; }
Error hipGraphInstantiateWithFlags(Handle* executable, Handle graph, unsigned long long flags) {
  CALL(hipGraphInstantiateWithFlags, graph, flags) *executable = made(); return 0;
}
Error hipGraphExecUpdate(Handle executable, Handle graph, Handle* node, int* result) {
  CALL(hipGraphExecUpdate, executable, graph) *node = nullptr; *result = 0; return 0;
}
Error hipGraphLaunch(Handle executable, Handle stream) { CALL(hipGraphLaunch, executable, stream) return 0; }
Error hipGraphDestroy(Handle graph) { CALL(hipGraphDestroy, graph) return 0; }
Error hipGraphExecDestroy(Handle executable) { CALL(hipGraphExecDestroy, executable) return 0; }

// hiprtc: machine code is the name of a text, its options and the text itself; a text with `wrong` in it is wrong.

struct Program { std::string source, name, code, log; };

Error hiprtcVersion(int* major, int* minor) { *major = 6; *minor = 3; return 0; }
const char* hiprtcGetErrorString(int code) { return code == 6 ? "HIPRTC_ERROR_COMPILATION" : "HIPRTC_ERROR"; }
Error hiprtcCreateProgram(Program** program, const char* source, const char* name, int headers, const char**, const char**) {
  if (headers) return 1;
  *program = new Program{source, name, "", ""};
  return 0;
}
Error hiprtcCompileProgram(Program* program, int count, const char** options) {
  program->code = "code of " + program->name;
  for (int i = 0; i < count; i++) program->code += std::string(" ") + options[i];
  program->code += "\n" + program->source;
  if (program->source.find("wrong") == std::string::npos) return 0;
  program->log = program->name + ":1: error: wrong";
  return 6;
}
Error hiprtcGetProgramLogSize(Program* program, size_t* size) { *size = program->log.size() + 1; return 0; }
Error hiprtcGetProgramLog(Program* program, char* log) { strcpy(log, program->log.c_str()); return 0; }
Error hiprtcGetCodeSize(Program* program, size_t* size) { *size = program->code.size(); return 0; }
Error hiprtcGetCode(Program* program, char* code) { memcpy(code, program->code.data(), program->code.size()); return 0; }
Error hiprtcDestroyProgram(Program** program) { delete *program; *program = nullptr; return 0; }
}
