#include "based/ops/linear/cuda/library_product.h"

#include <ATen/cuda/CUDAContext.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <optional>

#include "based/core/loaded_library.h"
#include "based/core/log.h"

#define BASED_TEXT_OF(x) #x
#define BASED_TEXT(x) BASED_TEXT_OF(x)

namespace based::ops {
namespace {

// The cuBLAS that LibTorch has loaded. A linker might choose the toolkit's instead.
struct Library {
  decltype(&cublasLtMatmul) multiply;
  decltype(&cublasLtMatmulAlgoGetHeuristic) propose;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) ask;
  decltype(&cublasLtMatmulDescCreate) make_product;
  decltype(&cublasLtMatmulDescDestroy) drop_product;
  decltype(&cublasLtMatmulDescSetAttribute) set_product;
  decltype(&cublasLtMatrixLayoutCreate) make_layout;
  decltype(&cublasLtMatrixLayoutDestroy) drop_layout;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) drop_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;

  Library() {
    static constexpr const char* kName = "libcublasLt.so." BASED_TEXT(CUBLAS_VER_MAJOR);
    const LoadedLibrary loaded(kName);
    loaded.find(multiply, "cublasLtMatmul"), loaded.find(propose, "cublasLtMatmulAlgoGetHeuristic");
    loaded.find(ask, "cublasLtMatmulAlgoConfigGetAttribute");
    loaded.find(make_product, "cublasLtMatmulDescCreate"), loaded.find(drop_product, "cublasLtMatmulDescDestroy");
    loaded.find(set_product, "cublasLtMatmulDescSetAttribute");
    loaded.find(make_layout, "cublasLtMatrixLayoutCreate"), loaded.find(drop_layout, "cublasLtMatrixLayoutDestroy");
    loaded.find(set_layout, "cublasLtMatrixLayoutSetAttribute");
    loaded.find(make_preference, "cublasLtMatmulPreferenceCreate"), loaded.find(drop_preference, "cublasLtMatmulPreferenceDestroy");
    loaded.find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    if (!complete())
      log_warning(std::string("linear: LibTorch has not loaded ") + kName +
                  "; its own choice of products runs, which is slower and rounds differently");
  }
  bool complete() const {
    return multiply && propose && ask && make_product && drop_product && set_product && make_layout && drop_layout && set_layout &&
           make_preference && drop_preference && set_preference;
  }
};

// One of the two matrices that are multiplied.
struct Factor {
  const Tensor& matrix;
  bool transposed = false;
};

// d = b·a, or d += b·a, plus the bias, all row-major. cuBLAS is column-major, so it reads every matrix as its transpose: dᵀ = aᵀ·bᵀ.
struct Request {
  Factor a, b;
  OptionalTensor bias;
  const Tensor& d;
  bool accumulate = false;
  cublasLtMatmulTile_t tile = CUBLASLT_MATMUL_TILE_UNDEFINED;  // preferred; undefined: cuBLAS' first choice
  bool workspace = false;                                      // in which cuBLAS may split sums over blocks
  int64_t planned_rows = 0;                                    // the rows of b and d for which a kernel is chosen; 0: as many as they have
};

// The largest power of two, up to 256, that divides the address.
uint32_t alignment_of(const void* data) {
  uint32_t alignment = 256;
  while (reinterpret_cast<uintptr_t>(data) % alignment != 0) alignment /= 2;
  return alignment;
}

// Everything that cuBLAS' choice of a kernel depends on.
using ProductKey = std::array<int64_t, 18>;

ProductKey key_of(const Request& request) {
  ProductKey key{};
  size_t at = 0;
  for (const Tensor* matrix : {&request.a.matrix, &request.b.matrix, &request.d}) {
    const bool planned = request.planned_rows > 0 && matrix != &request.a.matrix;
    for (const int64_t value : {planned ? request.planned_rows : matrix->size(0), matrix->size(1), matrix->stride(0),
                                static_cast<int64_t>(matrix->scalar_type()), static_cast<int64_t>(alignment_of(matrix->const_data_ptr()))})
      key[at++] = value;
  }
  key[at++] = request.bias ? alignment_of(request.bias->const_data_ptr()) : 0;
  key[at++] = (request.a.transposed ? 1 : 0) + (request.b.transposed ? 2 : 0) + (request.workspace ? 4 : 0) +
              8 * static_cast<int64_t>(request.tile);
  key[at++] = request.d.get_device();
  return key;
}

// cuBLAS' choices for the latest products. It computes its proposals anew at each request, on the host, and the layers of a model repeat
// the same products.
class Choices {
 public:
  std::optional<cublasLtMatmulHeuristicResult_t> find(const ProductKey& key) const {
    const std::scoped_lock lock(mutex_);
    const auto found = choices_.find(key);
    return found == choices_.end() ? std::nullopt : std::optional(found->second);
  }
  void keep(const ProductKey& key, const cublasLtMatmulHeuristicResult_t& choice) {
    constexpr size_t kMost = 512;  // sequences of different lengths give ever new products
    const std::scoped_lock lock(mutex_);
    if (choices_.size() >= kMost) choices_.clear();
    choices_.insert_or_assign(key, choice);
  }

 private:
  mutable std::mutex mutex_;
  std::map<ProductKey, cublasLtMatmulHeuristicResult_t> choices_;
};

class Product {
 public:
  Product(const Library& library, Choices& choices) : library_(library), choices_(choices) {}
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    for (const auto layout : layouts_)
      if (layout != nullptr) library_.drop_layout(layout);
    if (product_ != nullptr) library_.drop_product(product_);
    if (preference_ != nullptr) library_.drop_preference(preference_);
  }

  // False where cuBLAS has no kernel for it.
  bool multiply(const Request& request) { return describe(request) && choose(request) && run(request); }

 private:
  bool describe(const Request& request) {
    const auto& [a, b, bias, d, accumulate, tile, workspace, planned_rows] = request;
    bool done = good(library_.make_product(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F)) && good(library_.make_preference(&preference_)) &&
                set(CUBLASLT_MATMUL_DESC_TRANSA, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N) &&
                set(CUBLASLT_MATMUL_DESC_TRANSB, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (bias) {
      done = done && set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS) &&
             set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias->const_data_ptr());
    }
    return done && add(0, a.matrix, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) &&
           add(1, b.matrix, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) && add(2, d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
  }

  bool choose(const Request& request) {
    const ProductKey key = key_of(request);
    if (const auto known = choices_.find(key)) {
      chosen_ = *known;
      return true;
    }
    const auto resize = [&](int64_t rows_b, int64_t rows_d) { return set_rows(1, rows_b) && set_rows(2, rows_d); };
    const int64_t planned = request.planned_rows;
    if (planned > 0 && !resize(planned, planned)) return false;
    if (!propose(request)) return false;
    choices_.keep(key, chosen_);
    return planned == 0 || resize(request.b.matrix.size(0), request.d.size(0));
  }

  // On Hopper the proposal with the given tiles, if there is one; else the first; false where there is none.
  bool propose(const Request& request) {
    constexpr int kProposals = 8;
    const uint64_t workspace = request.workspace ? at::cuda::getCUDABlasLtWorkspaceSize() : 0;
    const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
    const auto& [a, b, d] = layouts_;
    cublasLtMatmulHeuristicResult_t all[kProposals];
    int found = 0;
    if (!prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace) ||
        !good(library_.propose(handle, product_, a, b, d, d, preference_, kProposals, all, &found)) || found == 0)
      return false;
    const bool measured = at::cuda::getCurrentDeviceProperties()->major == 9;
    const auto* best = std::find_if(all, all + found, [&](const auto& proposal) {
      cublasLtMatmulTile_t tile{};
      size_t written = 0;
      return measured && good(library_.ask(&proposal.algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &written)) &&
             tile == request.tile;
    });
    chosen_ = best != all + found ? *best : all[0];
    return true;
  }

  bool run(const Request& request) const {
    const float one = 1, beta = request.accumulate ? 1 : 0;
    void* const to = request.d.mutable_data_ptr();
    return good(library_.multiply(at::cuda::getCurrentCUDABlasLtHandle(), product_, &one, request.a.matrix.const_data_ptr(), layouts_[0],
                                  request.b.matrix.const_data_ptr(), layouts_[1], &beta, to, layouts_[2], to, layouts_[2], &chosen_.algo,
                                  chosen_.workspaceSize > 0 ? at::cuda::getCUDABlasLtWorkspace() : nullptr, chosen_.workspaceSize,
                                  at::cuda::getCurrentCUDAStream()));
  }

  static bool good(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }
  template <class Value>
  bool set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    return good(library_.set_product(product_, attribute, &value, sizeof(value)));
  }
  template <class Value>
  bool prefer(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    return good(library_.set_preference(preference_, attribute, &value, sizeof(value)));
  }
  bool add(int place, const Tensor& matrix, cublasLtMatmulPreferenceAttributes_t alignment_attribute) {
    const cudaDataType_t type = matrix.scalar_type() == at::kFloat ? CUDA_R_32F : CUDA_R_16BF;
    return prefer(alignment_attribute, alignment_of(matrix.const_data_ptr())) &&
           good(library_.make_layout(&layouts_[place], type, static_cast<uint64_t>(matrix.size(1)), static_cast<uint64_t>(matrix.size(0)),
                                     matrix.stride(0)));
  }

  // cuBLAS' columns are the rows of the matrix.
  bool set_rows(int place, int64_t rows) {
    const auto columns = static_cast<uint64_t>(rows);
    return good(library_.set_layout(layouts_[place], CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns)));
  }

  const Library& library_;
  Choices& choices_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatrixLayout_t layouts_[3] = {};  // a, b, d
  cublasLtMatmulHeuristicResult_t chosen_{};
};

// Whether each row is contiguous, in bf16.
bool is_plain(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && x.dim() == 2 && x.stride(1) == 1 && x.stride(0) >= x.size(1) && x.numel() > 0;
}

// Whether the tiles of the product fill the device. Otherwise a kernel that splits sums over blocks may be faster.
bool fills_device(int64_t rows, int64_t columns) {
  constexpr int64_t kTileRows = 128, kTileColumns = 256;
  return rows > kTileRows && rows / kTileRows * (columns / kTileColumns) >= at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
}

// cuBLAS' first choice is fast on a cool device. On a device at its power limit other tiles are faster (H200, bf16, µs: cuBLAS' choice,
// then these). 32768 x 1024 -> 4096: 418, 390; -> 3072: 337, 302; a tile is stored while the next one is computed. 2668ᵀ x 50304 x 1024
// added in fp32: 445, 412; smaller tiles.
constexpr cublasLtMatmulTile_t kWideTile = CUBLASLT_MATMUL_TILE_128x160, kAddedTile = CUBLASLT_MATMUL_TILE_128x128;
constexpr int64_t kMostStepRows = 128;  // so few rows are those of steps, whose products are recorded once
constexpr int64_t kWide = 3;            // outputs per input from which on the time of a product is that of storing its results

// The rows for which the kernel of a product is chosen: at most an eighth more than there are. cuBLAS loads a kernel when it is first
// launched, which takes 2 to 5 ms of the host, and products of ever new sizes would ask for ever new kernels (53 for 120 sizes).
int64_t planned_rows(int64_t rows) {
  const auto step = std::max<int64_t>(16, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows))) / 8);
  return (rows + step - 1) / step * step;
}

bool multiply(const Request& request) {
  static const Library library;
  static Choices choices;
  return library.complete() && Product(library, choices).multiply(request);
}

}  // namespace

Tensor linear_by_library(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  const int64_t columns = weight.size(0);
  const bool plain_bias = !bias || (bias->scalar_type() == at::kBFloat16 && bias->is_contiguous());
  if (is_plain(x) && is_plain(weight) && plain_bias && x.size(0) > kMostStepRows) {
    const Tensor y = at::empty({x.size(0), columns}, x.options());
    const bool fills = fills_device(x.size(0), columns), wide = fills && columns >= kWide * weight.size(1);
    const auto tile = wide ? kWideTile : CUBLASLT_MATMUL_TILE_UNDEFINED;
    if (multiply({{weight, true}, {x}, bias, y, false, tile, wide || !fills, planned_rows(x.size(0))})) return y;
  }
  return at::linear(x, weight, bias);
}

Tensor input_gradient_by_library(const Tensor& grad_y, const Tensor& weight) {
  if (is_plain(grad_y) && is_plain(weight) && fills_device(grad_y.size(0), weight.size(1))) {
    const Tensor y = at::empty({grad_y.size(0), weight.size(1)}, grad_y.options());
    if (multiply({{weight}, {grad_y}, {}, y})) return y;
  }
  return at::matmul(grad_y, weight);
}

bool add_product_by_library(const Tensor& sum, const Tensor& a, const Tensor& b, bool first) {
  return is_plain(a) && is_plain(b) && sum.scalar_type() == at::kFloat && sum.is_contiguous() &&
         multiply({{b}, {a, true}, {}, sum, !first, kAddedTile, true});
}

}  // namespace based::ops
