// A runtime of Objective-C with the classes of Metal and Foundation that the driver uses, by Metal's headers of macOS 13,
// written down here anew. It notes messages with their arguments, counts who has an object, finds messages to objects
// that are gone, and does what a queue was given when somebody waits for it, kernels by functions that tests bring.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Object {
  std::string kind;
  int owners = 1;
};

using Handle = Object*;
using Unsigned = unsigned long;

struct String : Object {
  std::string text;
};

struct Error : Object {
  long code = 0;
  std::string text;
};

struct Library : Object {
  std::string text;
};

struct Function : Object {
  std::string name;
};

struct Buffer : Object {
  char* bytes = nullptr;
  Unsigned size = 0;
};

using Run = int (*)(unsigned lanes, unsigned blocks, void** arguments);

struct Commands : Object {
  std::vector<std::function<void()>> todo;
  std::vector<Handle> held;
  unsigned long status = 0;  // 2 committed, 4 completed, 5 failed
  double end = 0;
  Error* error = nullptr;
};

struct Encoder : Object {
  Commands* commands = nullptr;
  bool ended = false;
  Function* kernel = nullptr;
  std::map<Unsigned, std::string> bytes;
  std::map<Unsigned, std::pair<Buffer*, Unsigned>> buffers;
};

std::recursive_mutex turns;  // kernels are compiled by many threads

#define IN_TURN const std::lock_guard<std::recursive_mutex> turn(turns)

std::string noted;
std::string wrong;
std::map<std::string, std::pair<long, std::string>> failures;
std::map<std::string, Run> kernels;
std::map<Handle, bool> alive;
thread_local std::vector<std::vector<Handle>> pools;
std::deque<Commands*> committed;
Unsigned capacity = 1 << 26, used = 0;

void release(Handle object);
void complete(Commands* last);

template <class T>
T* made(const char* kind) {
  IN_TURN;
  T* object = new T();
  object->kind = kind;
  alive[object] = true;
  return object;
}

template <class T>
T* for_the_pool(T* object) {
  if (pools.empty())
    wrong += "a " + object->kind + " in no pool\n";
  else
    pools.back().push_back(object);
  return object;
}

void release(Handle object) {
  IN_TURN;
  if (!alive[object]) {
    wrong += "a release of a " + object->kind + " that is gone\n";
    return;
  }
  if (--object->owners) return;
  alive[object] = false;
  if (object->kind == "buffer") {
    used -= ((Buffer*)object)->size;
    free(((Buffer*)object)->bytes);
  }
  if (object->kind == "commandBuffer") {
    auto* commands = (Commands*)object;
    if (commands->status == 2) complete(commands);
    for (Handle held : commands->held) release(held);
    commands->held.clear();
  }
  if (object->kind.find("Encoder") != std::string::npos && !((Encoder*)object)->ended) wrong += "an encoder ends open\n";
}

String* string(const std::string& text) {
  String* held = for_the_pool(made<String>("string"));
  held->text = text;
  return held;
}

bool fails(const char* message, Error** place) {
  IN_TURN;
  auto found = failures.find(message);
  if (found == failures.end()) return false;
  if (place) {
    *place = for_the_pool(made<Error>("error"));
    (*place)->code = found->second.first;
    (*place)->text = found->second.second;
  }
  failures.erase(found);
  return true;
}

std::string number(unsigned long value) { return std::to_string(value); }

void note(const std::string& text) {
  IN_TURN;
  noted += text + "\n";
}

void keep(Encoder* encoder, Handle object) {
  object->owners++;
  encoder->commands->held.push_back(object);
}

double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

// Does what a queue was given up to these commands.
void complete(Commands* last) {
  while (!committed.empty()) {
    Commands* first = committed.front();
    committed.pop_front();
    Error* error = nullptr;
    if (fails("run", &error)) {
      error->owners++;
      first->error = error;
      first->status = 5;
    } else {
      for (auto& each : first->todo) each();
      first->status = 4;
    }
    first->todo.clear();
    for (Handle held : first->held) release(held);
    first->held.clear();
    first->end = seconds();
    if (first == last) return;
  }
}

// messages, by class and name

Handle alloc(Handle, const char*) { return made<Object>("options"); }
Handle init(Handle self, const char*) { return self; }
Handle retain(Handle self, const char*) {
  IN_TURN;
  self->owners++;
  return self;
}
void release_(Handle self, const char*) { release(self); }
Handle string_of(Handle, const char*, const char* text) { return string(text); }
const char* utf8(String* self, const char*) { return self->text.c_str(); }
Handle described(Error* self, const char*) { return string(self->text); }
long code_of(Error* self, const char*) { return self->code; }
Handle name_of(Handle, const char*) { return string("Noted GPU"); }
uint64_t most_bytes(Handle, const char*) { return capacity; }
Unsigned allocated(Handle, const char*) { return used; }

void set_fast_math(Handle, const char*, bool on) { note("setFastMathEnabled: " + number(on)); }
void set_language(Handle, const char*, Unsigned version) { note("setLanguageVersion: " + number(version)); }

Handle new_library(Handle, const char* name, String* source, Handle options, Error** error) {
  note(std::string(name) + " " + options->kind);
  if (fails(name, error)) return nullptr;
  Library* library = made<Library>("library");
  library->text = source->text;
  return library;
}

Handle new_function(Library* self, const char* name, String* function) {
  note(std::string(name) + " " + function->text);
  if (self->text.find(function->text) == std::string::npos) return nullptr;
  Function* found = made<Function>("function");
  found->name = function->text;
  return found;
}

Handle new_pipeline(Handle, const char* name, Function* function, Error** error) {
  note(std::string(name) + " " + function->name);
  if (fails(name, error)) return nullptr;
  Function* pipeline = made<Function>("pipeline");
  pipeline->name = function->name;
  return pipeline;
}

Buffer* buffer_of(Unsigned size) {
  if (used + size > capacity) return nullptr;
  Buffer* buffer = made<Buffer>("buffer");
  buffer->size = size;
  buffer->bytes = (char*)aligned_alloc(16384, (size + 16383) / 16384 * 16384);
  memset(buffer->bytes, 0xA5, size);
  used += size;
  return buffer;
}

Handle new_buffer(Handle, const char* name, Unsigned size, Unsigned options) {
  note(std::string(name) + " " + number(size) + " " + number(options));
  return fails(name, nullptr) ? nullptr : buffer_of(size);
}

Handle new_buffer_with(Handle, const char* name, const void* bytes, Unsigned size, Unsigned options) {
  note(std::string(name) + " " + number(size) + " " + number(options));
  if (fails(name, nullptr)) return nullptr;
  Buffer* buffer = buffer_of(size);
  if (buffer) memcpy(buffer->bytes, bytes, size);
  return buffer;
}

uint64_t address_of(Buffer* self, const char*) { return (uint64_t)self->bytes; }

void* contents(Buffer* self, const char*) { return self->bytes; }

Handle new_queue(Handle, const char* name) {
  note(name);
  if (fails(name, nullptr)) return nullptr;
  return made<Object>("queue");
}

Handle command_buffer(Handle, const char* name) {
  note(name);
  if (fails(name, nullptr)) return nullptr;
  return for_the_pool(made<Commands>("commandBuffer"));
}

Encoder* encoder_of(Commands* self, const char* name, const char* kind) {
  note(name);
  if (fails(name, nullptr)) return nullptr;
  if (self->status != 0) wrong += "an encoder of commands that were committed\n";
  Encoder* encoder = for_the_pool(made<Encoder>(kind));
  encoder->commands = self;
  return encoder;
}

Handle compute_encoder(Commands* self, const char* name) { return encoder_of(self, name, "computeEncoder"); }
Handle blit_encoder(Commands* self, const char* name) { return encoder_of(self, name, "blitEncoder"); }

void set_pipeline(Encoder* self, const char* name, Function* pipeline) {
  note(std::string(name) + " " + pipeline->name);
  if (pipeline->kind != "pipeline") wrong += "a " + pipeline->kind + " as a pipeline\n";
  self->kernel = pipeline;
  keep(self, pipeline);
}

void set_buffer(Encoder* self, const char* name, Buffer* buffer, Unsigned offset, Unsigned index) {
  note(std::string(name) + " " + number(offset) + " " + number(index));
  if (offset >= buffer->size) wrong += "an offset behind a buffer\n";
  self->buffers[index] = {buffer, offset};
  self->bytes.erase(index);
  keep(self, buffer);
}

void set_bytes(Encoder* self, const char* name, const void* bytes, Unsigned size, Unsigned index) {
  note(std::string(name) + " " + number(size) + " " + number(index));
  if (size > 4096) wrong += "more bytes than commands hold\n";
  self->bytes[index] = std::string((const char*)bytes, size);
  self->buffers.erase(index);
}

void use(Encoder* self, const char* name, Buffer* buffer, Unsigned usage) {
  note(std::string(name) + " " + number(usage));
  keep(self, buffer);
}

struct Size {
  Unsigned width, height, depth;
};

std::string text(Size size) { return number(size.width) + "x" + number(size.height) + "x" + number(size.depth); }

void dispatch(Encoder* self, const char* name, Size blocks, Size lanes) {
  note(std::string(name) + " " + text(blocks) + " " + text(lanes));
  auto found = kernels.find(self->kernel->name);
  if (found == kernels.end()) return;
  self->commands->todo.push_back([run = found->second, blocks, lanes, bytes = self->bytes, buffers = self->buffers] {
    const size_t count = bytes.size() + buffers.size();  // of other kernels of the encoder there may be more
    std::vector<void*> held(count + 64), arguments(count + 64);
    for (auto& [index, place] : buffers) {
      held[index] = place.first->bytes + place.second;
      arguments[index] = &held[index];
    }
    for (auto& [index, text] : bytes) arguments[index] = (void*)text.data();
    if (run(lanes.width, blocks.width, arguments.data())) wrong += "a kernel failed\n";
  });
}

void copy(Encoder* self, const char* name, Buffer* from, Unsigned first, Buffer* to, Unsigned at, Unsigned size) {
  note(std::string(name) + " " + number(first) + " " + number(at) + " " + number(size));
  if (size == 0 || first % 4 || at % 4 || size % 4) wrong += "a copy of no whole words\n";
  if (first + size > from->size || at + size > to->size) wrong += "a copy behind a buffer\n";
  keep(self, from);
  keep(self, to);
  self->commands->todo.push_back([=] { memcpy(to->bytes + at, from->bytes + first, size); });
}

void end_encoding(Encoder* self, const char* name) {
  note(name);
  if (self->ended) wrong += "an encoder that ended before\n";
  self->ended = true;
}

void commit(Commands* self, const char* name) {
  note(name);
  if (self->status != 0) wrong += "commands that were committed before\n";
  self->status = 2;
  committed.push_back(self);
}

void wait_until(Commands* self, const char* name) {
  note(name);
  if (self->status == 0) wrong += "a wait for commands that were not committed\n";
  if (self->status == 2) complete(self);
}

std::map<Commands*, int> asked;

Unsigned status(Commands* self, const char*) {
  if (self->status == 2 && ++asked[self] > 3) complete(self);
  return self->status;
}

Handle error_of(Commands* self, const char*) { return self->error; }
double end_time(Commands* self, const char*) { return self->end; }

void* nothing(Handle, const char*) { return nullptr; }

using Implementation = void (*)();

const std::map<std::string, Implementation> messages = {
    {"alloc", (Implementation)alloc},
    {"init", (Implementation)init},
    {"retain", (Implementation)retain},
    {"release", (Implementation)release_},
    {"stringWithUTF8String:", (Implementation)string_of},
    {"UTF8String", (Implementation)utf8},
    {"localizedDescription", (Implementation)described},
    {"code", (Implementation)code_of},
    {"name", (Implementation)name_of},
    {"recommendedMaxWorkingSetSize", (Implementation)most_bytes},
    {"currentAllocatedSize", (Implementation)allocated},
    {"setFastMathEnabled:", (Implementation)set_fast_math},
    {"setLanguageVersion:", (Implementation)set_language},
    {"newLibraryWithSource:options:error:", (Implementation)new_library},
    {"newFunctionWithName:", (Implementation)new_function},
    {"newComputePipelineStateWithFunction:error:", (Implementation)new_pipeline},
    {"newBufferWithLength:options:", (Implementation)new_buffer},
    {"newBufferWithBytes:length:options:", (Implementation)new_buffer_with},
    {"contents", (Implementation)contents},
    {"gpuAddress", (Implementation)address_of},
    {"newCommandQueue", (Implementation)new_queue},
    {"commandBuffer", (Implementation)command_buffer},
    {"computeCommandEncoder", (Implementation)compute_encoder},
    {"blitCommandEncoder", (Implementation)blit_encoder},
    {"setComputePipelineState:", (Implementation)set_pipeline},
    {"setBuffer:offset:atIndex:", (Implementation)set_buffer},
    {"setBytes:length:atIndex:", (Implementation)set_bytes},
    {"useResource:usage:", (Implementation)use},
    {"dispatchThreadgroups:threadsPerThreadgroup:", (Implementation)dispatch},
    {"copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", (Implementation)copy},
    {"endEncoding", (Implementation)end_encoding},
    {"commit", (Implementation)commit},
    {"waitUntilCompleted", (Implementation)wait_until},
    {"status", (Implementation)status},
    {"error", (Implementation)error_of},
    {"GPUEndTime", (Implementation)end_time},
};

std::map<std::string, Handle> classes;
std::map<std::string, char*> selectors;

}  // namespace

extern "C" {

// tests

const char* noted_messages() { return noted.c_str(); }
void forget_messages() { noted.clear(); }
const char* what_is_wrong() { return wrong.c_str(); }
void fail_next(const char* message, long code, const char* text) { failures[message] = {code, text}; }
void set_capacity(Unsigned bytes) { capacity = bytes; }
void set_kernel(const char* name, Run run) { kernels[name] = run; }

int count_of(const char* kind) {
  int count = 0;
  for (auto& [object, here] : alive) count += here && object->kind == kind;
  return count;
}

// the runtime

Handle objc_getClass(const char* name) {
  IN_TURN;
  if (failures.count(name)) return nullptr;
  if (!classes.count(name)) classes[name] = made<Object>("class");
  return classes[name];
}

const char* sel_registerName(const char* name) {
  if (!selectors.count(name)) selectors[name] = strdup(name);
  return selectors[name];
}

void* objc_autoreleasePoolPush() {
  pools.emplace_back();
  return (void*)pools.size();
}

void objc_autoreleasePoolPop(void* pool) {
  if ((size_t)pool != pools.size()) wrong += "pools end in another order\n";
  for (Handle object : pools.back()) release(object);
  pools.pop_back();
}

Handle MTLCreateSystemDefaultDevice() {
  note("MTLCreateSystemDefaultDevice");
  return failures.count("MTLCreateSystemDefaultDevice") ? nullptr : made<Object>("device");
}

__attribute__((used)) Implementation implementation_of(Handle receiver, const char* name) {
  IN_TURN;
  if (!receiver) return (Implementation)nothing;
  if (!alive[receiver]) {
    wrong += std::string(name) + " to a " + receiver->kind + " that is gone\n";
    return (Implementation)nothing;
  }
  auto found = messages.find(name);
  if (found != messages.end()) return found->second;
  wrong += std::string("no message ") + name + "\n";
  return (Implementation)nothing;
}
}

// Goes on in what a message means, with the arguments as they came: in registers and on the stack, of any type.
asm(R"(
.text
.globl objc_msgSend
.type objc_msgSend, @function
objc_msgSend:
  push %rdi
  push %rsi
  push %rdx
  push %rcx
  push %r8
  push %r9
  sub $8, %rsp
  call implementation_of@PLT
  add $8, %rsp
  pop %r9
  pop %r8
  pop %rcx
  pop %rdx
  pop %rsi
  pop %rdi
  jmp *%rax
)");
