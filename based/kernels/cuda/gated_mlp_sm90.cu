// The hidden layer of a gated MLP: SwiGLU, or its gradient, of a product's sums before they go to memory.
#include "based/kernels/gated_mlp.h"

#include <algorithm>

#include "based/kernels/cuda/matmul_sm90.cuh"
#include "based/kernels/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;
using namespace detail::matmul;

#if BASED_HAS_WGMMA
// Of two numbers, with one reciprocal for both: the special function unit binds. To 4e-7; below −43, where it is 2e-19, that of −43, so
// that no product overflows.
__device__ __forceinline__ float2 sigmoids(float x, float y) {
  constexpr float kLog2e = 1.44269504088896341F, kLeast = -43.0F;
  const float a = 1.0F + exp2_approx(-kLog2e * fmaxf(x, kLeast)), b = 1.0F + exp2_approx(-kLog2e * fmaxf(y, kLeast));
  const float r = __fdividef(1.0F, a * b);
  return {r * b, r * a};
}
#endif

// A tile's first half are columns of u, its second those of their gates.
template <bool kKeepsH>
struct SwigluOf {
  static constexpr int kStages = 4, kBoxes = 2, kBarriers = 0;
  struct Params {
    CUtensorMap h, y;
    int width;
  };
#if BASED_HAS_WGMMA
  __device__ __forceinline__ static void init(uint32_t) {}
  __device__ __forceinline__ static void feed(const Params&, const Tiles&, uint32_t, uint32_t, int) {}
  static constexpr int kOfABox = kKeepsH ? 3 : 1, kParts = 2 * kOfABox;
  const Params& p;
  Outbox out;
  uint32_t u[2][16], gate[2][16];
  int row = 0, to = 0;
  __device__ __forceinline__ SwigluOf(const Params& params, uint32_t boxes, uint32_t, int group) : p(params), out{boxes, group} {}
  __device__ __forceinline__ void take(const float (&d)[128], int of_row, int column) {
    row = of_row, to = column * (kColumns / 2);
#pragma unroll
    for (int n = 0; n < 2; ++n) pack_box(d, n, u[n]), pack_box(d, n + 2, gate[n]);
  }
  __device__ __forceinline__ void part(int i) {
    const int n = i / kOfABox, column = to + n * kBox;
    if (kKeepsH && i % 3 == 0) return out.send(p.h, column, row, u[n]);
    if (kKeepsH && i % 3 == 1) return out.send(p.h, p.width + column, row, gate[n]);
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const float low = low_float(gate[n][k]), high = high_float(gate[n][k]);
      const float2 s = sigmoids(low, high);
      u[n][k] = pack_bf16(low_float(u[n][k]) * (low * s.x), high_float(u[n][k]) * (high * s.y));
    }
    out.send(p.y, column, row, u[n]);
  }
#endif
};

// The sums are the gradient of swiglu(h). h comes in pairs of boxes, u and gate, and its gradient leaves by the same boxes: the thread that
// feeds a warpgroup requests the pair after the next as soon as a pair is on its way to memory.
struct SwigluGradient {
  static constexpr int kStages = 3, kBoxes = 4, kBarriers = 4;
  struct Params {
    CUtensorMap h, grad_h;
    int width;
  };
#if BASED_HAS_WGMMA
  static constexpr int kPairs = kColumns / kBox, kParts = kPairs;  // of a tile
  const Params& p;
  uint32_t boxes, barriers, phase = 0;
  uint32_t g[kPairs][16];  // the sums, rounded, as they would have been on their way through memory

  __device__ __forceinline__ SwigluGradient(const Params& params, uint32_t of_boxes, uint32_t of_barriers, int)
      : p(params), boxes(of_boxes), barriers(of_barriers) {}
  __device__ __forceinline__ static uint32_t pair(uint32_t boxes, int n) { return boxes + n % 2 * 2 * kBoxBytes; }
  __device__ __forceinline__ static uint32_t here(uint32_t barriers, int n) { return barriers + n % 2 * 16; }
  __device__ __forceinline__ static uint32_t written(uint32_t barriers, int n) { return here(barriers, n) + 8; }
  __device__ __forceinline__ static void init(uint32_t barriers) {
    for (int n = 0; n < 2; ++n) barrier_init(here(barriers, n)), barrier_init(written(barriers, n), kGroup);
  }

  // Pair n of all that a block's tiles have.
  __device__ __forceinline__ static void request(const Params& p, const Tiles& tiles, uint32_t boxes, uint32_t barriers, int group, int n,
                                                 uint64_t policy) {
    const int tile = first_tile() + n / kPairs * tile_step();
    if (tile >= tiles.count()) return;
    const Place place(tiles, tile);
    const int row = place.row + group * kBox, column = place.column * kColumns + n % kPairs * kBox;
    const uint32_t to = pair(boxes, n), barrier = here(barriers, n);
    barrier_expect(barrier, 2 * kBoxBytes);
    load_box_once(to, p.h, column, row, barrier, policy), load_box_once(to + kBoxBytes, p.h, p.width + column, row, barrier, policy);
    if (n % kPairs < 2) prefetch_box(p.h, column + 2 * kBox, row), prefetch_box(p.h, p.width + column + 2 * kBox, row);
  }
  __device__ __forceinline__ static void feed(const Params& p, const Tiles& tiles, uint32_t boxes, uint32_t barriers, int group) {
    const uint64_t policy = first_out_of_cache();
    request(p, tiles, boxes, barriers, group, 0, policy), request(p, tiles, boxes, barriers, group, 1, policy);
    int n = 0;
    for (int tile = first_tile(); tile < tiles.count(); tile += tile_step()) {
      const Place place(tiles, tile);
      const int row = place.row + group * kBox;
      for (int i = 0; i < kPairs; ++i, ++n) {
        const int column = place.column * kColumns + i * kBox;
        barrier_wait(written(barriers, n), n / 2 % 2);
        store_box_once(p.grad_h, column, row, pair(boxes, n), policy);
        store_box_once(p.grad_h, p.width + column, row, pair(boxes, n) + kBoxBytes, policy);
        commit_stores();
        stores_are_read<0>();
        request(p, tiles, boxes, barriers, group, n + 2, policy);
      }
    }
  }

  __device__ __forceinline__ void take(const float (&d)[128], int, int) {
#pragma unroll
    for (int n = 0; n < kPairs; ++n) pack_box(d, n, g[n]);
  }
  __device__ __forceinline__ void part(int n) {
    const uint32_t at = pair(boxes, n);
    barrier_wait(here(barriers, n), phase);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const uint32_t place = matrix_place(at, j);
      uint32_t u[4], gate[4];
      ldmatrix(u, place), ldmatrix(gate, place + kBoxBytes);
#pragma unroll
      for (int i = 0; i < 4; ++i) differentiate(low_float(g[n][2 * j + i]), high_float(g[n][2 * j + i]), u[i], gate[i]);
      __syncwarp();
      stmatrix(place, u[0], u[1], u[2], u[3]), stmatrix(place + kBoxBytes, gate[0], gate[1], gate[2], gate[3]);
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

// [height, width], contiguous.
Status describe(CUtensorMap& map, const void* data, int64_t height, int64_t width, int box) {
  return describe_matrix(map, data, height, width, width, box);
}

// Measured: 4 to 16 pairs of rows together are alike.
Tiles make_tiles(int64_t rows, int64_t columns, int64_t depth) {
  Tiles t{};
  t.pairs = static_cast<int>(ceil_div(rows, 2 * kRows)), t.columns = static_cast<int>(columns / kColumns);
  t.steps = static_cast<int>(ceil_div(depth, kDepth)), t.together = 8;
  t.b_step = kColumns, t.b_half = kColumns / 2;
  return t;
}

template <bool kMajorN, class Epilogue>
Status run(const Tiles& tiles, const Operands& from, const typename Epilogue::Params& params, Stream stream) {
  auto* kernel = multiply<kMajorN, Epilogue>;
  if (const cudaError_t e = allow_shared_memory(kernel, kSharedBytes<Epilogue>); e != cudaSuccess) return status_of(e);
  const int clusters = std::min(multiprocessors() / 2, tiles.pairs * tiles.columns);
  return launch_overlapped(kernel, {static_cast<unsigned>(2 * clusters), kThreads, kSharedBytes<Epilogue>, 2}, stream, tiles, from, params);
}

bool fits(int64_t rows, int64_t width, int64_t depth) {
  return runs_hopper_code() && depth > 0 && depth % 8 == 0 && std::max({rows, width, depth}) <= 1 << 29;
}

}  // namespace

bool gated_hidden_supports(const GatedHidden& p) {
  return fits(p.rows, p.width, p.in) && p.width % (kColumns / 2) == 0 && aligned16(p.x) && aligned16(p.weight) && aligned16(p.h) &&
         aligned16(p.y);
}

Status gated_hidden(const GatedHidden& p, Stream stream) {
  if (p.rows == 0 || p.width == 0) return {};
  if (!gated_hidden_supports(p))
    return {"gated_hidden: not Hopper, or rows that are no multiples of 16 bytes, or width no multiple of 128"};
  Operands from;
  SwigluOf<true>::Params to{};
  to.width = static_cast<int>(p.width);
  if (const Status s = describe(from.a, p.x, p.rows, p.in, kRows); !s.ok()) return s;
  if (const Status s = describe(from.b, p.weight, 2 * p.width, p.in, kColumns / 2); !s.ok()) return s;
  if (const Status s = describe(to.y, p.y, p.rows, p.width, kBox); !s.ok()) return s;
  Tiles tiles = make_tiles(p.rows, 2 * p.width, p.in);
  tiles.b_step = kColumns / 2, tiles.b_half = to.width;
  if (p.h == nullptr) return run<false, SwigluOf<false>>(tiles, from, {to.h, to.y, to.width}, stream);
  if (const Status s = describe(to.h, p.h, p.rows, 2 * p.width, kBox); !s.ok()) return s;
  return run<false, SwigluOf<true>>(tiles, from, to, stream);
}

bool gated_hidden_backward_supports(const GatedHiddenBackward& p) {
  return fits(p.rows, p.width, p.out) && p.width % kColumns == 0 && aligned16(p.grad_y) && aligned16(p.weight) && aligned16(p.h) &&
         aligned16(p.grad_h);
}

Status gated_hidden_backward(const GatedHiddenBackward& p, Stream stream) {
  if (p.rows == 0 || p.width == 0) return {};
  if (!gated_hidden_backward_supports(p))
    return {"gated_hidden_backward: not Hopper, or rows that are no multiples of 16 bytes, or width no multiple of 256"};
  Operands from;
  SwigluGradient::Params to{};
  to.width = static_cast<int>(p.width);
  if (const Status s = describe(from.a, p.grad_y, p.rows, p.out, kRows); !s.ok()) return s;
  if (const Status s = describe(from.b, p.weight, p.out, p.width, kBox); !s.ok()) return s;
  if (const Status s = describe(to.h, p.h, p.rows, 2 * p.width, kBox); !s.ok()) return s;
  if (const Status s = describe(to.grad_h, p.grad_h, p.rows, 2 * p.width, kBox); !s.ok()) return s;
  return run<true, SwigluGradient>(make_tiles(p.rows, p.width, p.out), from, to, stream);
}

}  // namespace based::kernels::cuda
