// The hidden layer of a gated MLP: a matrix product whose epilogue applies SwiGLU, or its gradient, to the sums in registers.
#include "based/kernels/linear/gated_mlp.h"

#include <algorithm>

#include "based/kernels/common/cuda/vectors.cuh"
#include "based/kernels/linear/cuda/matmul_sm90.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;
using namespace detail::matmul;

#if BASED_HAS_WGMMA
// Sigmoids of two numbers with a single reciprocal, since the special function unit is the bottleneck. Relative error 4e-7. Inputs below
// −43 are clamped to −43 (where the sigmoid is 2e-19), so that the product of the denominators does not overflow.
__device__ __forceinline__ float2 sigmoids(float x, float y) {
  constexpr float kLog2e = 1.44269504088896341F, kMinInput = -43.0F;
  const float a = 1.0F + exp2_approx(-kLog2e * fmaxf(x, kMinInput)), b = 1.0F + exp2_approx(-kLog2e * fmaxf(y, kMinInput));
  const float r = __fdividef(1.0F, a * b);
  return {r * b, r * a};
}
#endif

// Epilogue of the forward. The first half of a tile's columns are u, the second half are the gates of the same columns. kStoresH: also
// stores h.
template <bool kStoresH>
struct SwigluEpilogue {
  static constexpr int kStages = 4, kBoxes = 2, kBarriers = 0;
  struct Params {
    CUtensorMap h, y;
    int width;
  };
#if BASED_HAS_WGMMA
  __device__ __forceinline__ static void init(uint32_t) {}
  __device__ __forceinline__ static void prefetch_operands(const Params&, const Tiles&, uint32_t, uint32_t, int) {}
  static constexpr int kStoresPerBox = kStoresH ? 3 : 1, kParts = 2 * kStoresPerBox;
  const Params& p;
  TileStore output;
  uint32_t u[2][16], gate[2][16];
  int row = 0, first_column = 0;
  __device__ __forceinline__ SwigluEpilogue(const Params& params, uint32_t boxes, uint32_t, int group) : p(params), output{boxes, group} {}
  __device__ __forceinline__ void accept_accumulators(const float (&d)[128], int tile_row, int column_tile) {
    row = tile_row, first_column = column_tile * (kColumns / 2);
#pragma unroll
    for (int n = 0; n < 2; ++n) pack_box(d, n, u[n]), pack_box(d, n + 2, gate[n]);
  }
  __device__ __forceinline__ void store_part(int i) {
    const int n = i / kStoresPerBox, column = first_column + n * kBox;
    if (kStoresH && i % 3 == 0) return output.store(p.h, column, row, u[n]);
    if (kStoresH && i % 3 == 1) return output.store(p.h, p.width + column, row, gate[n]);
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const float low = low_float(gate[n][k]), high = high_float(gate[n][k]);
      const float2 s = sigmoids(low, high);
      u[n][k] = pack_bf16(low_float(u[n][k]) * (low * s.x), high_float(u[n][k]) * (high * s.y));
    }
    output.store(p.y, column, row, u[n]);
  }
#endif
};

// Epilogue of the backward. The sums are the gradient of swiglu(h). One extra thread per warpgroup loads h in pairs of boxes (u, gate). The
// warpgroup overwrites each pair with its gradient. The extra thread stores it, and then loads the pair after the next into the same boxes.
struct SwigluGradient {
  static constexpr int kStages = 3, kBoxes = 4, kBarriers = 4;
  struct Params {
    CUtensorMap h, grad_h;
    int width;
  };
#if BASED_HAS_WGMMA
  static constexpr int kPairs = kColumns / kBox, kParts = kPairs;  // pairs of boxes per tile
  const Params& p;
  uint32_t boxes, barriers, phase = 0;
  uint32_t g[kPairs][16];  // the sums, rounded to bf16 as if they had been stored

  __device__ __forceinline__ SwigluGradient(const Params& params, uint32_t group_boxes, uint32_t group_barriers, int)
      : p(params), boxes(group_boxes), barriers(group_barriers) {}
  __device__ __forceinline__ static uint32_t pair(uint32_t boxes, int n) { return boxes + n % 2 * 2 * kBoxBytes; }
  __device__ __forceinline__ static uint32_t full(uint32_t barriers, int n) { return barriers + n % 2 * 16; }
  __device__ __forceinline__ static uint32_t written(uint32_t barriers, int n) { return full(barriers, n) + 8; }
  __device__ __forceinline__ static void init(uint32_t barriers) {
    for (int n = 0; n < 2; ++n) barrier_init(full(barriers, n)), barrier_init(written(barriers, n), kGroup);
  }

  // Loads pair n, counted over all tiles of the block.
  __device__ __forceinline__ static void load_pair(const Params& p, const Tiles& tiles, uint32_t boxes, uint32_t barriers, int group, int n,
                                                   uint64_t policy) {
    const int tile = first_tile() + n / kPairs * tile_step();
    if (tile >= tiles.count()) return;
    const TilePosition position(tiles, tile);
    const int row = position.row + group * kBox, column = position.column * kColumns + n % kPairs * kBox;
    const uint32_t box = pair(boxes, n), barrier = full(barriers, n);
    barrier_expect(barrier, 2 * kBoxBytes);
    load_box_once(box, p.h, column, row, barrier, policy), load_box_once(box + kBoxBytes, p.h, p.width + column, row, barrier, policy);
    if (n % kPairs < 2) prefetch_box(p.h, column + 2 * kBox, row), prefetch_box(p.h, p.width + column + 2 * kBox, row);
  }
  __device__ __forceinline__ static void prefetch_operands(const Params& p, const Tiles& tiles, uint32_t boxes, uint32_t barriers,
                                                           int group) {
    const uint64_t policy = first_out_of_cache();
    load_pair(p, tiles, boxes, barriers, group, 0, policy), load_pair(p, tiles, boxes, barriers, group, 1, policy);
    int n = 0;
    for (int tile = first_tile(); tile < tiles.count(); tile += tile_step()) {
      const TilePosition position(tiles, tile);
      const int row = position.row + group * kBox;
      for (int i = 0; i < kPairs; ++i, ++n) {
        const int column = position.column * kColumns + i * kBox;
        barrier_wait(written(barriers, n), n / 2 % 2);
        store_box_once(p.grad_h, column, row, pair(boxes, n), policy);
        store_box_once(p.grad_h, p.width + column, row, pair(boxes, n) + kBoxBytes, policy);
        commit_stores();
        wait_for_stores<0>();
        load_pair(p, tiles, boxes, barriers, group, n + 2, policy);
      }
    }
  }

  __device__ __forceinline__ void accept_accumulators(const float (&d)[128], int, int) {
#pragma unroll
    for (int n = 0; n < kPairs; ++n) pack_box(d, n, g[n]);
  }
  __device__ __forceinline__ void store_part(int n) {
    const uint32_t box = pair(boxes, n);
    barrier_wait(full(barriers, n), phase);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const uint32_t matrix = matrix_address(box, j);
      uint32_t u[4], gate[4];
      ldmatrix(u, matrix), ldmatrix(gate, matrix + kBoxBytes);
#pragma unroll
      for (int i = 0; i < 4; ++i) differentiate(low_float(g[n][2 * j + i]), high_float(g[n][2 * j + i]), u[i], gate[i]);
      __syncwarp();
      stmatrix(matrix, u[0], u[1], u[2], u[3]), stmatrix(matrix + kBoxBytes, gate[0], gate[1], gate[2], gate[3]);
    }
    fence_shared_proxy();
    barrier_arrive(written(barriers, n));
    if (n % 2 == 1) phase ^= 1;
  }

 private:
  __device__ __forceinline__ static void differentiate_one(float g, float s, float& u, float& gate) {
    const float silu = gate * s;
    gate = g * u * fmaf(silu, 1 - s, s);
    u = g * silu;
  }
  __device__ __forceinline__ static void differentiate(float g0, float g1, uint32_t& u, uint32_t& gate) {
    float u0 = low_float(u), u1 = high_float(u), gate0 = low_float(gate), gate1 = high_float(gate);
    const float2 s = sigmoids(gate0, gate1);
    differentiate_one(g0, s.x, u0, gate0), differentiate_one(g1, s.y, u1, gate1);
    u = pack_bf16(u0, u1), gate = pack_bf16(gate0, gate1);
  }
#endif
};

// Describes a contiguous matrix [height, width] in boxes of `box` rows.
Status describe(CUtensorMap& map, const void* data, int64_t height, int64_t width, int box) {
  return describe_matrix(map, data, height, width, width, box);
}

// 4 to 16 pairs of row tiles in cache perform alike (measured).
Tiles make_tiles(int64_t rows, int64_t columns, int64_t depth) {
  Tiles t{};
  t.pairs = static_cast<int>(ceil_div(rows, 2 * kRows)), t.columns = static_cast<int>(columns / kColumns);
  t.steps = static_cast<int>(ceil_div(depth, kDepth)), t.pairs_in_cache = 8;
  t.b_step = kColumns, t.b_half = kColumns / 2;
  return t;
}

template <bool kMajorN, class Epilogue>
Status run(const Tiles& tiles, const Operands& operands, const typename Epilogue::Params& params, Queue queue) {
  auto* kernel = multiply<kMajorN, Epilogue>;
  if (const cudaError_t e = allow_shared_memory(kernel, kSharedBytes<Epilogue>); e != cudaSuccess) return status_of(e);
  const int clusters = std::min(multiprocessors() / 2, tiles.pairs * tiles.columns);
  return launch_overlapped(kernel, {static_cast<unsigned>(2 * clusters), kThreads, kSharedBytes<Epilogue>, 2}, queue, tiles, operands,
                           params);
}

bool fits(int64_t rows, int64_t width, int64_t depth) {
  return runs_hopper_code() && depth > 0 && depth % 8 == 0 && std::max({rows, width, depth}) <= 1 << 29;
}

}  // namespace

bool gated_hidden_supports(const GatedHidden& p) {
  return fits(p.rows, p.width, p.in) && p.width % (kColumns / 2) == 0 && aligned16(p.x) && aligned16(p.weight) && aligned16(p.h) &&
         aligned16(p.y);
}

Status gated_hidden(const GatedHidden& p, Queue queue) {
  if (p.rows == 0 || p.width == 0) return {};
  if (!gated_hidden_supports(p))
    return {"gated_hidden: not Hopper, or rows that are no multiples of 16 bytes, or width no multiple of 128"};
  Operands operands;
  SwigluEpilogue<true>::Params params{};
  params.width = static_cast<int>(p.width);
  if (const Status s = describe(operands.a, p.x, p.rows, p.in, kRows); !s.ok()) return s;
  if (const Status s = describe(operands.b, p.weight, 2 * p.width, p.in, kColumns / 2); !s.ok()) return s;
  if (const Status s = describe(params.y, p.y, p.rows, p.width, kBox); !s.ok()) return s;
  Tiles tiles = make_tiles(p.rows, 2 * p.width, p.in);
  tiles.b_step = kColumns / 2, tiles.b_half = params.width;
  if (p.h == nullptr) return run<false, SwigluEpilogue<false>>(tiles, operands, {params.h, params.y, params.width}, queue);
  if (const Status s = describe(params.h, p.h, p.rows, 2 * p.width, kBox); !s.ok()) return s;
  return run<false, SwigluEpilogue<true>>(tiles, operands, params, queue);
}

bool gated_hidden_backward_supports(const GatedHiddenBackward& p) {
  return fits(p.rows, p.width, p.out) && p.width % kColumns == 0 && aligned16(p.grad_y) && aligned16(p.weight) && aligned16(p.h) &&
         aligned16(p.grad_h);
}

Status gated_hidden_backward(const GatedHiddenBackward& p, Queue queue) {
  if (p.rows == 0 || p.width == 0) return {};
  if (!gated_hidden_backward_supports(p))
    return {"gated_hidden_backward: not Hopper, or rows that are no multiples of 16 bytes, or width no multiple of 256"};
  Operands operands;
  SwigluGradient::Params params{};
  params.width = static_cast<int>(p.width);
  if (const Status s = describe(operands.a, p.grad_y, p.rows, p.out, kRows); !s.ok()) return s;
  if (const Status s = describe(operands.b, p.weight, p.out, p.width, kBox); !s.ok()) return s;
  if (const Status s = describe(params.h, p.h, p.rows, 2 * p.width, kBox); !s.ok()) return s;
  if (const Status s = describe(params.grad_h, p.grad_h, p.rows, 2 * p.width, kBox); !s.ok()) return s;
  return run<true, SwigluGradient>(make_tiles(p.rows, p.width, p.out), operands, params, queue);
}

}  // namespace based::kernels::cuda
