// A CUDA driver that tells how the calls for parts of graphs come to it, by the signatures of CUDA 13's `cuda.h`, written
// down here anew. Others it does not have.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>

using Result = int;
using Handle = void*;

struct Edge {
  unsigned char from_port, to_port, type, reserved[5];
};

struct Conditional {
  uint64_t condition;
  int kind;
  unsigned size;
  Handle* bodies;
  Handle context;
};

struct Parameters {
  int kind, reserved[3];
  union {
    long long all[29];
    Conditional conditional;
  };
  long long behind;
};

namespace {

uintptr_t last_handle = 0x7f0000001000;  // above 32 bits: a handle that is cut shows
Handle before[] = {(Handle)0x7f00000a1000, (Handle)0x7f00000a2000};
Edge edges[] = {{0, 0, 0, {}}, {1, 0, 1, {}}};
Handle bodies[] = {(Handle)0x7f00000b1000, (Handle)0x7f00000b2000};

Handle made() { return (Handle)(last_handle += 0x1000); }

}  // namespace

extern "C" {

Result told_cuInit(unsigned) { return 0; }
Result told_cuDriverGetVersion(int* version) { *version = 13000; return 0; }
Result told_cuCtxGetCurrent(Handle* context) { *context = (Handle)0x7f00000c0000; return 0; }

Result told_cuStreamCreate(Handle* stream, unsigned flags) {
  *stream = made();
  printf("stream %p %u\n", *stream, flags);
  return 0;
}

Result told_cuStreamDestroy(Handle stream) { printf("drop %p\n", stream); return 0; }

Result told_cuStreamGetCaptureInfo(
    Handle stream, int* status, uint64_t* id, Handle* graph, const Handle** nodes, const Edge** kinds, size_t* count) {
  *status = 1;
  if (id) *id = 7;
  if (graph) *graph = (Handle)((uintptr_t)stream + 1);
  if (nodes) *nodes = before;
  if (kinds) *kinds = edges;
  if (count) *count = 2;
  return 0;
}

Result told_cuGraphConditionalHandleCreate(uint64_t* made, Handle graph, Handle context, unsigned value, unsigned flags) {
  *made = 0xf234567890abcdefull;
  printf("condition of %p %p %u %u\n", graph, context, value, flags);
  return 0;
}

Result told_cuGraphAddNode(
    Handle* node, Handle graph, const Handle* nodes, const Edge* kinds, size_t count, Parameters* wanted) {
  const Conditional& of = wanted->conditional;
  printf("node of %p behind", graph);
  for (size_t i = 0; i < count; i++) printf(" %p:%d%d", nodes[i], kinds[i].from_port, kinds[i].type);
  printf(", %d %llx %d %u %p\n", wanted->kind, (unsigned long long)of.condition, of.kind, of.size, of.context);
  wanted->conditional.bodies = bodies;
  *node = (Handle)0x7f00000d0000;
  return 0;
}

Result told_cuStreamBeginCaptureToGraph(
    Handle stream, Handle graph, const Handle*, const Edge*, size_t count, int mode) {
  printf("note %p in %p behind %zu, %d\n", stream, graph, count, mode);
  return 0;
}

Result told_cuStreamEndCapture(Handle stream, Handle* graph) {
  *graph = bodies[0];
  printf("noted %p\n", stream);
  return 0;
}

Result told_cuStreamUpdateCaptureDependencies(
    Handle stream, Handle* nodes, const Edge* kinds, size_t count, unsigned flags) {
  printf("%p goes on behind %zu: %p %p %u\n", stream, count, nodes[0], (const void*)kinds, flags);
  return 0;
}

Result told_cuModuleLoadData(Handle* module, const void* image) {
  *module = made();
  printf("load %zu\n", strlen((const char*)image));
  return 0;
}

Result cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* status) {
  char own[256];
  snprintf(own, sizeof own, "told_%s", name);
  Dl_info here;
  dladdr((void*)&cuGetProcAddress_v2, &here);
  *function = strcmp(name, "cuGetProcAddress")
      ? dlsym(dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD), own) : (void*)&cuGetProcAddress_v2;
  if (status) *status = *function ? 0 : 1;
  return 0;
}

}
