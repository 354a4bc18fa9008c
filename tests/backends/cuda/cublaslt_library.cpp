// A cuBLASLt that works on the processor, by the signatures and numbers of NVIDIA's `cublasLt.h`, written down here anew.
// It makes products of what its descriptors say, when the stream that they were given comes to them. It refuses what
// the real one refuses: attributes of another size, dtypes that do not belong together, rows of 16-bit numbers that do not
// begin at multiples of 16 bytes, a workspace that is too small, places that an algorithm does not take.

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum Type { F32 = 0, F16 = 2, BF16 = 14 };
constexpr uint64_t MAGIC = 0x7f00c0ffee;

std::string noted;
std::map<std::string, std::vector<int>> failures;
long living = 0;
int offered = 3;
uint64_t wanted_workspace = 4096;

int called(const char* name) {
  noted += std::string(name) + "\n";
  auto& codes = failures[name];
  if (codes.empty()) return SUCCESS;
  const int code = codes.front();
  codes.erase(codes.begin());
  return code;
}

struct Handle { uint64_t magic = MAGIC; };

struct Product {
  int compute, scale;
  int32_t transposed[2] = {0, 0};
  uint32_t epilogue = 1;
  const void* bias = nullptr;
  int32_t bias_type = -1;
};

struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t lead;
  int32_t count = 1;
  int64_t stride = 0;
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = 7;
  uint32_t alignments[4] = {256, 256, 256, 256};
  uint64_t units = ~0ull;
};

struct Algorithm {
  uint64_t magic, number, workspace, alignment, strict, rest[3];
};
static_assert(sizeof(Algorithm) == 64);

struct Result {
  Algorithm algorithm;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Result) == 96);

struct Job {
  Product product;
  Layout layouts[4];
  const void *left, *right, *added;
  void* result;
  float alpha, beta;
  uint64_t number;
  void* workspace;
  size_t workspace_bytes;
};
std::vector<Job> jobs;
void (*give)(uint64_t stream, int job, int algorithm);

int size_of(int type) { return type == F32 ? 4 : 2; }

float read(const void* base, int type, int64_t at) {
  if (type == F32) return ((const float*)base)[at];
  if (type == F16) return (float)((const _Float16*)base)[at];
  const uint32_t bits = (uint32_t)((const uint16_t*)base)[at] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

void write(void* base, int type, int64_t at, float value) {
  if (type == F32) {
    ((float*)base)[at] = value;
  } else if (type == F16) {
    ((_Float16*)base)[at] = (_Float16)value;
  } else {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    ((uint16_t*)base)[at] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}

// Whether descriptors are of one product, in the order left, right, added, result.
int checked(const Product& product, const Layout* layouts) {
  const Layout &left = layouts[0], &right = layouts[1], &added = layouts[2], &result = layouts[3];
  if (product.compute != 68 || product.scale != F32) return NOT_SUPPORTED;
  if (left.type != right.type || added.type != result.type) return NOT_SUPPORTED;
  if (result.type != left.type && result.type != F32) return NOT_SUPPORTED;
  const uint64_t rows = product.transposed[0] ? left.columns : left.rows;
  const uint64_t depth = product.transposed[0] ? left.rows : left.columns;
  const uint64_t columns = product.transposed[1] ? right.rows : right.columns;
  if (depth != (product.transposed[1] ? right.columns : right.rows)) return INVALID_VALUE;
  if (result.rows != rows || result.columns != columns || added.rows != rows || added.columns != columns)
    return INVALID_VALUE;
  for (int i = 0; i < 4; i++) {
    if (layouts[i].lead < (int64_t)layouts[i].rows || layouts[i].count != result.count) return INVALID_VALUE;
    if (left.type != F32 && layouts[i].lead * size_of(layouts[i].type) % 16) return NOT_SUPPORTED;
  }
  if (product.epilogue != 1 && product.epilogue != 4) return NOT_SUPPORTED;
  if (product.epilogue == 4 && (!product.bias || product.bias_type != result.type)) return NOT_SUPPORTED;
  return SUCCESS;
}

int take(const Product* product, const Layout* const* given, Layout* layouts) {
  if (!product) return INVALID_VALUE;
  for (int i = 0; i < 4; i++) {
    if (!given[i]) return INVALID_VALUE;
    layouts[i] = *given[i];
  }
  return checked(*product, layouts);
}

template <class T>
int assign(T& target, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return INVALID_VALUE;
  memcpy(&target, value, bytes);
  return SUCCESS;
}

int64_t span(const Layout& layout) {
  return ((layout.count - 1) * layout.stride + (layout.columns - 1) * layout.lead + layout.rows) * size_of(layout.type);
}

}  // namespace

#define CALL(name) \
  if (int code = called(#name)) return code;

extern "C" {

const char* noted_calls() { return noted.c_str(); }
void forget_calls() { noted.clear(); }
void fail_call(const char* name, int code, int after) {
  failures[name].assign(after, 0);
  failures[name].push_back(code);
}
void forget_failures() { failures.clear(); }
long living_objects() { return living; }
void offer(int algorithms, uint64_t workspace) { offered = algorithms, wanted_workspace = workspace; }
void set_give(void (*to)(uint64_t, int, int)) { give = to; }

// Where a job reads and writes: six pairs of a place and bytes.
void job_places(int number, uint64_t* pairs) {
  const Job& job = jobs[number];
  const void* places[] = {job.left, job.right, job.added, job.result};
  for (int i = 0; i < 4; i++) pairs[2 * i] = (uint64_t)places[i], pairs[2 * i + 1] = span(job.layouts[i]);
  pairs[8] = (uint64_t)job.workspace, pairs[9] = job.workspace_bytes;
  pairs[10] = (uint64_t)job.product.bias;
  pairs[11] = job.product.epilogue == 4 ? job.layouts[3].rows * size_of(job.layouts[3].type) : 0;
}

void run_job(int number) {
  const Job& job = jobs[number];
  const Layout &left = job.layouts[0], &right = job.layouts[1], &added = job.layouts[2], &result = job.layouts[3];
  const uint64_t depth = job.product.transposed[0] ? left.rows : left.columns;
  for (int64_t each = 0; each < result.count; each++)
    for (uint64_t column = 0; column < result.columns; column++)
      for (uint64_t row = 0; row < result.rows; row++) {
        float sum = 0;
        for (uint64_t k = 0; k < depth; k++) {
          const int64_t at = job.product.transposed[0] ? k + row * left.lead : row + k * left.lead;
          const int64_t on = job.product.transposed[1] ? column + k * right.lead : k + column * right.lead;
          sum += read(job.left, left.type, each * left.stride + at) * read(job.right, right.type, each * right.stride + on);
        }
        float value = job.alpha * sum;
        if (job.beta != 0)
          value += job.beta * read(job.added, added.type, each * added.stride + row + column * added.lead);
        if (job.product.epilogue == 4) value += read(job.product.bias, job.product.bias_type, row);
        write(job.result, result.type, each * result.stride + row + column * result.lead, value);
      }
}

size_t cublasLtGetVersion() { return 130100; }

int cublasLtCreate(Handle** handle) {
  CALL(Create)
  *handle = new Handle;
  living++;
  return SUCCESS;
}

int cublasLtDestroy(Handle* handle) {
  CALL(Destroy)
  if (handle->magic != MAGIC) return INVALID_VALUE;
  delete handle;
  living--;
  return SUCCESS;
}

int cublasLtMatmulDescCreate(Product** product, int compute, int scale) {
  CALL(MatmulDescCreate)
  *product = new Product{compute, scale};
  living++;
  return SUCCESS;
}

int cublasLtMatmulDescDestroy(Product* product) {
  CALL(MatmulDescDestroy)
  delete product;
  living--;
  return SUCCESS;
}

int cublasLtMatmulDescSetAttribute(Product* product, int attribute, const void* value, size_t bytes) {
  CALL(MatmulDescSetAttribute)
  switch (attribute) {
    case 3: return assign(product->transposed[0], value, bytes);
    case 4: return assign(product->transposed[1], value, bytes);
    case 7: return assign(product->epilogue, value, bytes);
    case 8: return assign(product->bias, value, bytes);
    case 26: return assign(product->bias_type, value, bytes);
  }
  return INVALID_VALUE;
}

int cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t lead) {
  CALL(MatrixLayoutCreate)
  *layout = new Layout{type, rows, columns, lead};
  living++;
  return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(Layout* layout) {
  CALL(MatrixLayoutDestroy)
  delete layout;
  living--;
  return SUCCESS;
}

int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t bytes) {
  CALL(MatrixLayoutSetAttribute)
  switch (attribute) {
    case 5: return assign(layout->count, value, bytes);
    case 6: return assign(layout->stride, value, bytes);
  }
  return INVALID_VALUE;
}

int cublasLtMatmulPreferenceCreate(Preference** preference) {
  CALL(MatmulPreferenceCreate)
  *preference = new Preference;
  living++;
  return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(Preference* preference) {
  CALL(MatmulPreferenceDestroy)
  delete preference;
  living--;
  return SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t bytes) {
  CALL(MatmulPreferenceSetAttribute)
  switch (attribute) {
    case 1: return assign(preference->workspace, value, bytes);
    case 3: return assign(preference->reductions, value, bytes);
    case 5: case 6: case 7: case 8: return assign(preference->alignments[attribute - 5], value, bytes);
    case 12: return assign(preference->units, value, bytes);
  }
  return INVALID_VALUE;
}

int cublasLtMatmulAlgoGetHeuristic(
    Handle* handle, Product* product, Layout* left, Layout* right, Layout* added, Layout* result,
    Preference* preference, int most, Result* results, int* count) {
  CALL(MatmulAlgoGetHeuristic)
  if (!handle || handle->magic != MAGIC) return NOT_INITIALIZED;
  Layout layouts[4];
  const Layout* given[] = {left, right, added, result};
  if (int code = take(product, given, layouts)) return code;
  if (preference->reductions != 2) return NOT_SUPPORTED;  // whose sums would have 16 bits in between
  // Without a mask sums of f32 could be of numbers that were cut to 10 bits.
  if (left->type == F32 && preference->units != 0x80201) return NOT_SUPPORTED;
  uint64_t least = 256;
  for (uint32_t alignment : preference->alignments) least = alignment < least ? alignment : least;
  if (left->type != F32 && least < 16) return NOT_SUPPORTED;
  *count = 0;
  for (int number = 0; number < offered && number < most; number++) {
    const uint64_t workspace = number ? wanted_workspace : 0;
    if (workspace > preference->workspace) continue;
    Result& one = results[(*count)++];
    memset(&one, 0, sizeof one);
    one.algorithm = {MAGIC, (uint64_t)number, workspace, least, left->type == F32};
    one.workspace = workspace;
  }
  return SUCCESS;
}

int cublasLtMatmulAlgoCheck(
    Handle* handle, Product* product, Layout* left, Layout* right, Layout* added, Layout* result,
    const Algorithm* algorithm, Result* told) {
  CALL(MatmulAlgoCheck)
  if (!handle || handle->magic != MAGIC) return NOT_INITIALIZED;
  Layout layouts[4];
  const Layout* given[] = {left, right, added, result};
  if (int code = take(product, given, layouts)) return code;
  if (algorithm->magic != MAGIC || algorithm->strict != (left->type == F32)) return INVALID_VALUE;
  told->workspace = algorithm->workspace;
  told->status = SUCCESS;
  return SUCCESS;
}

int cublasLtMatmul(
    Handle* handle, Product* product, const float* alpha, const void* a, Layout* left, const void* b, Layout* right,
    const float* beta, const void* c, Layout* added, void* d, Layout* result, const Algorithm* algorithm,
    void* workspace, size_t workspace_bytes, uint64_t stream) {
  CALL(Matmul)
  if (!handle || handle->magic != MAGIC) return NOT_INITIALIZED;
  Job job;
  const Layout* given[] = {left, right, added, result};
  if (int code = take(product, given, job.layouts)) return code;
  if (algorithm->magic != MAGIC || algorithm->workspace > workspace_bytes) return INVALID_VALUE;
  for (const void* place : {a, b, c, (const void*)d})
    if ((uint64_t)place % algorithm->alignment) return INVALID_VALUE;
  job.product = *product;
  job.left = a, job.right = b, job.added = c, job.result = d, job.alpha = *alpha, job.beta = *beta;
  job.number = algorithm->number;
  job.workspace = workspace, job.workspace_bytes = workspace_bytes;
  jobs.push_back(job);
  give(stream, (int)jobs.size() - 1, (int)job.number);
  return SUCCESS;
}

}  // extern "C"
