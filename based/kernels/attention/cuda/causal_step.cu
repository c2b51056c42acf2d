// Decode attention over a ring of keys (algorithm 3). Every warp loads its first keys before the position is known, and masks them once
// they have arrived. There are two kernels:
//   streamed (bf16, sm_90): one warp per head; keys pass through shared memory to the tensor cores.
//   plain: several warps share the keys of a head; within a warp, each group of lanes processes one key, 16 bytes per lane.
#include <algorithm>

#include "based/kernels/attention/causal_attention.h"
#include "based/kernels/attention/causal_attention_plan.h"
#include "based/kernels/attention/cuda/attention_sums.cuh"
#include "based/kernels/attention/cuda/rotary_angle.cuh"
#include "based/kernels/common/cuda/launch.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

using StreamedPlan = StreamedAttentionPlan;
constexpr int kMaxWarps = StreamedPlan::kMaxWarps, kFewWarps = kMaxWarps / 2, kTileKeys = StreamedPlan::kTileKeys,
              kRotationBytes = StreamedPlan::kRotationBytes;
constexpr float kLog2E = 1.44269504088896341F;  // log2(e): weights are computed by exp2f

// Launch shape of the plain kernel.
struct PlainPlan {
  int heads, warps;  // heads per block, warps per head
};

// Index in the ring of the key with position `written`. The division uses 32 bits if both operands fit.
__device__ __forceinline__ int64_t ring_index(int64_t written, int64_t capacity) {
  return (written | capacity) >> 32 == 0 ? static_cast<uint32_t>(written) % static_cast<uint32_t>(capacity) : written % capacity;
}

// The plain kernel. plan.warps warps share the keys of a head. kLanes lanes hold one key, 8 elements each; a group of lanes processes kKeys
// keys at a time.
template <typename T, typename R, bool kAligned, int kLanes>
__global__ void __launch_bounds__(32 * kMaxWarps) step_rows(const __grid_constant__ CausalAttentionStep p, const PlainPlan plan) {
  extern __shared__ float partial[];  // the warps' sums: [warps][head_dim + 2]
  constexpr int kKeys = sizeof(R) == 2 ? 8 : 4, kGroups = 32 / kLanes, kTile = kKeys * kGroups;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / kLanes;
  const int64_t row = blockIdx.x;
  const int planned_head = blockIdx.y * plan.heads + warp / plan.warps, part = warp % plan.warps;
  const bool active = planned_head < p.heads;  // the last block of a row may have warps without a head
  const int head = min(planned_head, p.heads - 1), heads_per_key = p.heads / p.kv_heads, kv_head = head / heads_per_key;
  // The lane holds elements [column, column + elements) of a key.
  const int column = lane % kLanes * kVector, elements = min(max(p.head_dim - column, 0), kVector);
  const int64_t slot = p.slot != nullptr ? p.slot[row] : row, stride = int64_t{p.kv_heads} * p.head_dim;
  const int64_t kv_column = int64_t{kv_head} * p.head_dim + column;
  R* const k_ring = static_cast<R*>(p.k_ring) + slot * p.capacity * stride + kv_column;
  R* const v_ring = static_cast<R*>(p.v_ring) + slot * p.capacity * stride + kv_column;

  // Load the token's own q, k and v before the ring's keys, which would delay them.
  Vector<T> query, new_k, new_v;
  if (elements != 0) {
    query.template load<kAligned>(static_cast<const T*>(p.q) + row * p.q_stride + int64_t{head} * p.head_dim + column, elements);
    new_k.template load<kAligned>(static_cast<const T*>(p.k) + row * p.k_stride + kv_column, elements);
    new_v.template load<kAligned>(static_cast<const T*>(p.v) + row * p.v_stride + kv_column, elements);
  }
  const int64_t written = p.position[row];

  // Load the first keys before the position is known.
  Vector<R> k[kKeys], v[kKeys];
  const auto load_keys = [&](int64_t base, int64_t limit) {
    const int64_t first = (base + group) * stride;
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      if (elements == 0 || base + group + u * kGroups >= limit) continue;
      k[u].template load<kAligned>(k_ring + first + u * kGroups * stride, elements);
      v[u].template load<kAligned>(v_ring + first + u * kGroups * stride, elements);
    }
  };
  int64_t base = part * kTile;
  load_keys(base, active ? p.capacity : 0);

  // The number of keys including the new one, and the new key's index in the ring.
  const int64_t count = min(written + 1, p.capacity), newest = ring_index(written, p.capacity);
  float q[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) q[i] = query.get(i) * (p.scale * kLog2E);
  const auto score = [&](const Vector<R>& key) {
    float s = 0;
    if (elements != 0) {
#pragma unroll
      for (int c = 0; c < kVector; ++c) s = fmaf(q[c], key.get(c), s);
    }
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) s += __shfl_xor_sync(~0U, s, distance);
    return s;
  };

  Sums sums;
  if (active) {
    // The new key, from registers. One group of the head's first warp adds it; the first of the heads that share the key stores it.
    if (part == 0) {
      float new_key[kVector], new_value[kVector];
#pragma unroll
      for (int c = 0; c < kVector; ++c) new_key[c] = new_k.get(c), new_value[c] = new_v.get(c);
      Vector<R> key, value;
      key.set(new_key), value.set(new_value);
      const float s = score(key);
      if (group == 0) {
        sums.top = s;
        sums.add(s, value);
        if (head % heads_per_key == 0 && elements != 0) {
          key.template store<kAligned>(k_ring + newest * stride, elements);
          value.template store<kAligned>(v_ring + newest * stride, elements);
        }
      }
    }
    // The ring's keys, kTile at a time. The new key's entry may still hold an old key, so it is masked.
    for (; base < count; load_keys(base, count)) {
      float scores[kKeys], top = sums.top;
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        const int64_t i = base + group + u * kGroups;
        const float s = score(k[u]);
        scores[u] = i < count && i != newest ? s : -INFINITY;
        top = fmaxf(top, scores[u]);
      }
      sums.raise(top);
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        if (scores[u] > -INFINITY) sums.add(scores[u], v[u]);
      }
      base += plan.warps * kTile;
    }
  }

  // Merge the sums of the head's warps into y.
  const int width = p.head_dim + 2;
  store_partial_sums<kLanes>(sums, column, elements, partial + warp * width);
  __syncthreads();  // the partial sums of all warps of a head are complete
  if (part != 0 || !active) return;
  const MergedSums merged(partial + warp * width, plan.warps, width);
  for (int d = lane; d < p.head_dim; d += 32)
    static_cast<T*>(p.y)[(row * p.heads + head) * p.head_dim + d] = from_float<T>(merged.at(d).output());
}

// The streamed kernel (sm_90). Each warp handles one head. It prefetches tiles of 16 keys and values into its own pipeline of kStages tiles
// in shared memory, and multiplies two tiles at a time on the tensor cores. The order of its sums depends neither on kStages nor on the
// number of blocks per row.
template <int kSteps, int kStages>
constexpr int warp_bytes() {
  return kStages * 2 * kTileKeys * kSteps * 32;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// kSteps: head_dim / 16, rounded up. Columns beyond head_dim are zero.
template <int kSteps, int kStages>
struct HeadWarp {
  static constexpr int kRow = kSteps * 32, kTile = 2 * kTileKeys * kRow;  // bytes
  static constexpr int kBatch = kStages < 2 ? kStages : 2;                // tiles multiplied together
  static constexpr int kLanes = kSteps <= 4 ? 8 : 16,
                       kKeysPerCopy = 32 / kLanes;  // lanes that copy one key; keys that a warp copies together
  const CausalAttentionStep& p;
  int64_t row;
  const int head, kv_head, lane;
  const uint32_t base,
      rotations;  // shared addresses of the kStages tiles (each: keys, then values), and of the rotary {cosine, sine} pairs
  int64_t slot, stride;
  char *k_ring, *v_ring;
  int count, newest;  // number of keys including the new one; the new key's index in the ring
  uint32_t q[kSteps][2];
  uint4 token;  // 16 bytes of the token's key (lanes 0 to 15) or of its value (lanes 16 to 31)
  float top = -INFINITY, total = 0, sum[kSteps][4] = {};

  __device__ __forceinline__ HeadWarp(const CausalAttentionStep& params, int64_t batch_row, int query_head, uint32_t shared)
      : p(params),
        row(batch_row),
        head(query_head),
        kv_head(query_head / (params.heads / params.kv_heads)),
        lane(threadIdx.x % 32),
        base(shared + threadIdx.x / 32 * (warp_bytes<kSteps, kStages>())),
        rotations(shared + blockDim.x / 32 * (warp_bytes<kSteps, kStages>())) {
    slot = p.slot != nullptr ? p.slot[row] : row, stride = int64_t{p.kv_heads} * p.head_dim * 2;
    const int64_t first = slot * p.capacity * stride + int64_t{kv_head} * p.head_dim * 2;
    k_ring = static_cast<char*>(p.k_ring) + first, v_ring = static_cast<char*>(p.v_ring) + first;
  }
  // Shared address of a 16-byte unit of a key (operand 0) or value (1) of a stage. Units are permuted within each row, so that the same
  // unit of eight rows is in eight different bank groups.
  __device__ __forceinline__ uint32_t address(int stage, int operand, int key, int unit) const {
    const int permuted = unit ^ (kSteps == 7 ? key / 4 % 2 : key % 8);
    return base + stage * kTile + (operand * kTileKeys + key) * kRow + permuted * 16;
  }
  // The address of the unit 2j units after this one.
  __device__ __forceinline__ static uint32_t advance(uint32_t unit, int j) { return kSteps == 7 ? unit + 32 * j : unit ^ (32 * j); }

  __device__ __forceinline__ void prefetch(int tile, int stage) const {
    const int unit = lane % kLanes, key = lane / kLanes;
    if (unit >= 2 * kSteps) return;
    const int64_t first = (int64_t{tile} * kTileKeys + key) * stride + unit * 16;
#pragma unroll
    for (int i = 0; i < kTileKeys; i += kKeysPerCopy) {
      const bool valid = tile * kTileKeys + key + i < p.capacity && unit * kVector < p.head_dim;
      const int64_t offset = valid ? first + i * stride : 0;
      copy_async_16(address(stage, 0, key + i, unit), k_ring + offset, valid);
      copy_async_16(address(stage, 1, key + i, unit), v_ring + offset, valid);
    }
  }
  __device__ __forceinline__ void load_token() {
    const auto* query = static_cast<const bf16*>(p.q) + row * p.q_stride + int64_t{head} * p.head_dim;
    const auto* own = lane < 16 ? static_cast<const bf16*>(p.k) + row * p.k_stride : static_cast<const bf16*>(p.v) + row * p.v_stride;
    const int d = lane % 16 * kVector;
    token = make_uint4(0, 0, 0, 0);
    if (d < p.head_dim) token = *reinterpret_cast<const uint4*>(own + int64_t{kv_head} * p.head_dim + d);
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const int column = 8 * i + 2 * (lane % 4);
      q[i / 2][i % 2] = column < p.head_dim ? *reinterpret_cast<const uint32_t*>(query + column) : 0;
    }
  }
  // Computes `count`, `newest` and the rotary angles. Pair d is elements (d, d + 8 kSteps), since head_dim = 16 kSteps if q and k are
  // rotated. A second call overwrites the results of the first; each thread writes the same pairs.
  __device__ __forceinline__ void set_position(int64_t written) {
    count = static_cast<int>(min(written + 1, p.capacity)), newest = static_cast<int>(ring_index(written, p.capacity));
    if (p.rotary_base == 0) return;
    for (int pair = threadIdx.x; pair < 8 * kSteps; pair += blockDim.x) {
      const float2 rotation = rotary_turn(written, rotary_frequency(pair, 16 * kSteps, p.rotary_base));
      store_shared_float(rotations + 8 * pair, rotation.x), store_shared_float(rotations + 8 * pair + 4, rotation.y);
    }
  }
  // Rotate two adjacent pairs {a, b} by t = {cosine, sine, cosine, sine}, and return the first or second elements.
  __device__ __forceinline__ static uint32_t rotated_first(uint32_t a, uint32_t b, float4 t) {
    return pack_bf16(low_float(a) * t.x - low_float(b) * t.y, high_float(a) * t.z - high_float(b) * t.w);
  }
  __device__ __forceinline__ static uint32_t rotated_second(uint32_t a, uint32_t b, float4 t) {
    return pack_bf16(low_float(a) * t.y + low_float(b) * t.x, high_float(a) * t.w + high_float(b) * t.z);
  }
  __device__ __forceinline__ void rotate_token() {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const float4 t = load_shared_float4(rotations + 8 * (8 * i + 2 * (lane % 4)));
      uint32_t &a = q[i / 2][i % 2], &b = q[(i + kSteps) / 2][(i + kSteps) % 2];
      const uint32_t first = rotated_first(a, b, t);
      b = rotated_second(a, b, t), a = first;
    }
    const int unit = lane % 16;
    const bool is_first = unit < kSteps;
    uint32_t words[4] = {token.x, token.y, token.z, token.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t other = __shfl_sync(~0U, words[w], (is_first ? lane + kSteps : lane - kSteps) % 32);
      const float4 t = load_shared_float4(rotations + 8 * ((is_first ? unit : unit - kSteps) * 8 % (8 * kSteps) + 2 * w));
      if (lane < 16 && unit < 2 * kSteps) words[w] = is_first ? rotated_first(words[w], other, t) : rotated_second(other, words[w], t);
    }
    token = make_uint4(words[0], words[1], words[2], words[3]);
  }
  // Stores the new key and value in the ring, once for the heads that share them.
  __device__ __forceinline__ void store_token() const {
    const int d = lane % 16 * kVector;
    if (d < p.head_dim && head % (p.heads / p.kv_heads) == 0)
      *reinterpret_cast<uint4*>((lane < 16 ? k_ring : v_ring) + newest * stride + d * 2) = token;
  }
  // The ring of the sequence after each of several tokens: first copies of the ring before them, then their keys and values.
  __device__ __forceinline__ void keep_ring(const CausalAttentionTokens& all) const {
    const int64_t bytes = p.capacity * stride;
    const int units = p.head_dim / kVector;
    for (int64_t i = lane; i < p.capacity * units; i += 32) {
      const int64_t at = i / units * stride + i % units * 16;
      const uint4 key = *reinterpret_cast<const uint4*>(k_ring + at), value = *reinterpret_cast<const uint4*>(v_ring + at);
      for (int64_t t = 0; t + 1 < all.tokens; ++t) {
        const int64_t to = t * bytes + int64_t{kv_head} * p.head_dim * 2 + at;
        *reinterpret_cast<uint4*>(static_cast<char*>(all.kept_k_ring) + to) = key;
        *reinterpret_cast<uint4*>(static_cast<char*>(all.kept_v_ring) + to) = value;
      }
    }
    __syncwarp();
  }
  __device__ __forceinline__ void keep_token(const CausalAttentionTokens& all) const {
    const int d = lane % 16 * kVector;
    if (d >= p.head_dim) return;
    char* kept = static_cast<char*>(lane < 16 ? all.kept_k_ring : all.kept_v_ring) + (int64_t{kv_head} * p.head_dim + d) * 2;
    for (int64_t t = row; t + 1 < all.tokens; ++t) *reinterpret_cast<uint4*>(kept + (t * p.capacity + newest) * stride) = token;
  }
  // Writes the new key and value to their tile. Also clears the values of ring entries without a key, since 0 times their contents may be
  // NaN.
  __device__ __forceinline__ void complete(int tile, int stage) const {
    const int unit = lane % 16, first = tile * kTileKeys, own = newest - first;
    const bool has_own = own >= 0 && own < kTileKeys;
    if (first + kTileKeys <= count && !has_own) return;
    if (unit < 2 * kSteps) {
      if (has_own) store_shared_16(address(stage, lane / 16, own, unit), token.x, token.y, token.z, token.w);
      for (int key = max(count - first, 0); key < kTileKeys; ++key) {
        if (lane < 16) store_shared_16(address(stage, 1, key, unit), 0, 0, 0, 0);
      }
    }
    __syncwarp();
  }
  // Scores of keys lane / 4 and lane / 4 + 8. All columns of operand b are the query, so every lane of a row has the same scores.
  __device__ __forceinline__ float2 scores(int tile, int stage) const {
    const uint32_t unit = address(stage, 0, lane % 16, lane / 16);
    float d[2][4] = {};
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      uint32_t keys[4];
      ldmatrix(keys, advance(unit, j));
      mma_16x8x16(d[j % 2], keys, q[j][0], q[j][1]);
    }
    const int key = tile * kTileKeys + lane / 4;
    const float scale = p.scale * kLog2E;
    return make_float2(key < count ? (d[0][0] + d[1][0]) * scale : -INFINITY, key + 8 < count ? (d[0][2] + d[1][2]) * scale : -INFINITY);
  }
  // The weights as operand b, in two bf16 parts: the rounded weight in even columns, the rounding error in odd columns. The sums of both
  // columns are added at the end.
  __device__ __forceinline__ static uint32_t columns(float weight) {
    const float rounded = to_float(from_float<bf16>(weight));
    return transpose_matrix(pack_bf16(rounded, weight - rounded));
  }
  __device__ __forceinline__ void add_values(int stage, float2 weight) {
    const uint32_t unit = address(stage, 1, lane % 8 + lane / 16 * 8, lane / 8 % 2), b0 = columns(weight.x), b1 = columns(weight.y);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      uint32_t values[4];
      ldmatrix_transposed(values, advance(unit, j));
      mma_16x8x16(sum[j], values, b0, b1);
    }
  }
  __device__ __forceinline__ void add_batch(int tile, const int (&stage)[kBatch]) {
    float2 s[kBatch];
    float largest = top;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) s[i] = scores(tile + i, stage[i]), largest = fmaxf(largest, fmaxf(s[i].x, s[i].y));
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, distance));
    if (largest != top) {
      const float factor = exp2f(top - largest);
      total *= factor, top = largest;
#pragma unroll
      for (auto& part : sum) {
#pragma unroll
        for (float& x : part) x *= factor;
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float2 weight = make_float2(exp2f(s[i].x - top), exp2f(s[i].y - top));
      total += weight.x + weight.y;
      add_values(stage[i], weight);
    }
  }
  __device__ __forceinline__ void add_keys() {
    int next = 0;
#pragma unroll 1
    for (int tile = 0; tile * kTileKeys < count; tile += kBatch) {
      int stage[kBatch];
#pragma unroll
      for (int& s : stage) s = next, next = next + 1 == kStages ? 0 : next + 1;
      copy_async_wait<kStages - kBatch>();
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kBatch; ++i) complete(tile + i, stage[i]);
      add_batch(tile, stage);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if ((tile + i + kStages) * kTileKeys < count) prefetch(tile + i + kStages, stage[i]);
        copy_async_commit();
      }
    }
    copy_async_wait<0>();  // the loop does not wait for all copies if the sequence is short
  }
  // Writes y of the row, and of `more` rows after it.
  __device__ __forceinline__ void write(int64_t more = 0) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) total += __shfl_xor_sync(~0U, total, distance);
    for (int64_t i = 0; i <= more; ++i) {
      bf16* y = static_cast<bf16*>(p.y) + ((row + i) * p.heads + head) * p.head_dim;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const int d = 16 * j + lane / 4;
        if (j % 4 != lane % 4) continue;
        if (d < p.head_dim) y[d] = from_float<bf16>((sum[j][0] + sum[j][1]) / total);
        if (d + 8 < p.head_dim) y[d + 8] = from_float<bf16>((sum[j][2] + sum[j][3]) / total);
      }
    }
  }
  __device__ __forceinline__ void clear_sums() {
    top = -INFINITY, total = 0;
#pragma unroll
    for (auto& part : sum) {
#pragma unroll
      for (float& x : part) x = 0;
    }
  }
};
#endif

// The number of blocks of the streamed kernel that must fit on a multiprocessor, which limits its registers.
constexpr int resident_blocks(int steps, int warps) {
  if (warps < kMaxWarps) return 3;
  return steps <= 4 ? 2 : 1;
}

// The heads of a row are divided among `blocks_per_row` blocks of up to kWarps warps.
template <int kSteps, int kStages, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, resident_blocks(kSteps, kWarps))
    step_streamed(const __grid_constant__ CausalAttentionStep p, const int blocks_per_row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(256) char memory[];
  let_next_kernel_start();
  if (!p.ring_is_private) wait_for_earlier_kernels();
  const int warp = threadIdx.x / 32, rank = blockIdx.x % blocks_per_row;
  HeadWarp<kSteps, kStages> head_warp(p, blockIdx.x / blocks_per_row, rank * (blockDim.x / 32) + warp, shared_address(memory));
  // The first kernel of a decode step writes the positions. The new position is usually in memory before this kernel has waited for the
  // earlier kernels. So the kernel first computes with the value found there, and repeats the computation if that value was not final. It
  // reads the positions from the L2 cache, where they are written.
  const int64_t* position = p.position + head_warp.row;
  const int64_t early = __ldcg(position);
  if (!p.ring_is_private) head_warp.load_token();  // before the ring's keys, which would delay it
#pragma unroll
  for (int tile = 0; tile < kStages; ++tile) {
    if (tile * kTileKeys < p.capacity) head_warp.prefetch(tile, tile);
    copy_async_commit();
  }
  head_warp.set_position(early);
  if (p.ring_is_private) {
    wait_for_earlier_kernels();
    const int64_t written = __ldcg(position);
    head_warp.load_token();
    if (written != early) head_warp.set_position(written);
  }
  if (p.rotary_base != 0) {
    __syncthreads();
    head_warp.rotate_token();
  }
  head_warp.store_token();
  head_warp.add_keys();
  head_warp.write();
#else
  __trap();
#endif
}

// The streamed kernel for several tokens of one sequence. A ring that fits into the kStages tiles is copied to shared memory once, where
// each token then replaces its own entry.
template <int kSteps, int kStages>
__global__ void __launch_bounds__(32 * kMaxWarps, kSteps <= 4 ? 2 : 1)
    read_tokens_streamed(const __grid_constant__ CausalAttentionTokens all) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(256) char memory[];
  const CausalAttentionStep& p = all.step;
  let_next_kernel_start();
  if (!p.ring_is_private) wait_for_earlier_kernels();
  HeadWarp<kSteps, kStages> head_warp(p, 0, blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, shared_address(memory));
  const bool holds_ring = p.capacity <= kStages * kTileKeys, keeps = all.kept_k_ring != nullptr && all.tokens > 1;
  const auto prefetch_ring = [&] {
#pragma unroll
    for (int tile = 0; tile < kStages; ++tile) {
      if (tile * kTileKeys < p.capacity) head_warp.prefetch(tile, tile);
      copy_async_commit();
    }
  };
  prefetch_ring();
  if (p.ring_is_private) wait_for_earlier_kernels();
#pragma unroll 1
  for (int64_t t = 0; t < all.tokens; ++t) {
    head_warp.row = t;
    head_warp.load_token();
    if (t > 0 && !holds_ring) prefetch_ring();
    if (t == 0 && keeps) head_warp.keep_ring(all);
    head_warp.set_position(p.position[t]);
    if (p.rotary_base != 0) {
      __syncthreads();
      head_warp.rotate_token();
      __syncthreads();  // the next token's angles replace these
    }
    head_warp.store_token();
    if (keeps) head_warp.keep_token(all);
    head_warp.add_keys();
    head_warp.write(t + 1 == all.tokens ? all.padding : 0);
    head_warp.clear_sums();
    if (!holds_ring) __threadfence();  // the next token's copies read this token's key
    __syncwarp();
  }
#else
  __trap();
#endif
}

template <typename T, typename R, bool kAligned>
auto* choose_lanes(int head_dim) {
  if (head_dim <= 4 * kVector) return step_rows<T, R, kAligned, 4>;
  if (head_dim <= 8 * kVector) return step_rows<T, R, kAligned, 8>;
  return head_dim <= 16 * kVector ? step_rows<T, R, kAligned, 16> : step_rows<T, R, kAligned, 32>;
}
template <typename T, typename R>
auto* choose(const CausalAttentionStep& p) {
  const bool vector = has_whole_vectors(p);
  return vector ? choose_lanes<T, R, true>(p.head_dim) : choose_lanes<T, R, false>(p.head_dim);
}

template <int kSteps, int kStages, int kWarps = kMaxWarps>
Status launch_streamed(const CausalAttentionStep& p, const StreamedPlan& plan, Queue queue) {
  const int shared = plan.warps * warp_bytes<kSteps, kStages>() + kRotationBytes;
  auto* kernel = step_streamed<kSteps, kStages, kWarps>;
  if (const cudaError_t e = allow_shared_memory(kernel, shared); e != cudaSuccess) return status_of(e);
  const auto blocks = static_cast<unsigned>(p.rows * plan.blocks_per_row), threads = static_cast<unsigned>(32 * plan.warps);
  return launch_overlapped(kernel, {blocks, threads, shared}, queue, p, plan.blocks_per_row);
}

template <int kSteps, int kStages>
Status launch_streamed(const CausalAttentionTokens& p, const StreamedPlan& plan, Queue queue) {
  const int shared = plan.warps * warp_bytes<kSteps, kStages>() + kRotationBytes;
  auto* kernel = read_tokens_streamed<kSteps, kStages>;
  if (const cudaError_t e = allow_shared_memory(kernel, shared); e != cudaSuccess) return status_of(e);
  return launch_overlapped(kernel, {static_cast<unsigned>(plan.blocks_per_row), static_cast<unsigned>(32 * plan.warps), shared}, queue, p);
}

// Prefetches four tiles if a block has few heads, else two, so that more blocks fit on a multiprocessor; one if the ring is one tile.
template <int kSteps, class Problem>
Status stream_rows(const Problem& p, const StreamedPlan& plan, Queue queue) {
  if constexpr (std::is_same_v<Problem, CausalAttentionStep>) {
    if (p.capacity <= kTileKeys)
      return plan.warps <= kFewWarps ? launch_streamed<kSteps, 1, kFewWarps>(p, plan, queue) : launch_streamed<kSteps, 1>(p, plan, queue);
  }
  return plan.warps <= 4 ? launch_streamed<kSteps, 4>(p, plan, queue) : launch_streamed<kSteps, 2>(p, plan, queue);
}

}  // namespace

Status causal_attention_step(const CausalAttentionStep& p, Queue queue) {
  if (p.rows == 0) return {};
  if (p.head_dim > 32 * kVector) return {"causal_attention_step: head_dim is larger than 256"};
  const StreamedPlan plan = plan_streamed_attention(p, this_gpu());
  if (p.rotary_base != 0 && !causal_attention_step_fuses_rotary(p, this_gpu()))
    return {"causal_attention_step: no kernel that rotates q and k"};
  if (plan.warps > 0) {
    const int steps = attention_steps(p);
    using Step = CausalAttentionStep;
    auto* run = steps == 4 ? stream_rows<4, Step> : steps == 7 ? stream_rows<7, Step> : stream_rows<8, Step>;
    return run(p, plan, queue);
  }
  const bool bf = p.dtype == DType::bf16, ring_bf = p.ring_dtype == DType::bf16;
  auto* kernel =
      bf ? (ring_bf ? choose<bf16, bf16>(p) : choose<bf16, float>(p)) : (ring_bf ? choose<float, bf16>(p) : choose<float, float>(p));
  // If the ring is short, one block handles a whole row; else each block handles one head.
  const bool whole_row = p.heads <= kMaxWarps && p.capacity * p.heads * p.head_dim <= 256 * 1024;
  const PlainPlan plain = whole_row ? PlainPlan{p.heads, std::max(1, kMaxWarps / p.heads)} : PlainPlan{1, 8};
  const int warps = plain.heads * plain.warps, bytes = warps * (p.head_dim + 2) * 4;
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(ceil_div(p.heads, plain.heads)));
  kernel<<<grid, 32 * warps, bytes, stream_of(queue)>>>(p, plain);
  return launched();
}

Status causal_attention_tokens(const CausalAttentionTokens& p, Queue queue) {
  if (p.tokens < 1 || p.tokens > kCausalAttentionTokens) return {"causal_attention_tokens: tokens must be 1 to 8"};
  if (!causal_attention_takes_tokens(p.step, this_gpu())) return {"causal_attention_tokens: no kernel for this problem"};
  using Tokens = CausalAttentionTokens;
  const int steps = attention_steps(p.step);
  auto* run = steps == 4 ? stream_rows<4, Tokens> : steps == 7 ? stream_rows<7, Tokens> : stream_rows<8, Tokens>;
  return run(p, plan_streamed_attention(p.step, this_gpu()), queue);
}

namespace {
const DefineLaunchers<CausalAttentionLaunchers> kLaunchers(
    Device::cuda, {.supports = causal_attention_supports,
                   .forward_scratch = causal_attention_scratch,
                   .forward = causal_attention_forward,
                   .backward_scratch = causal_attention_backward_scratch,
                   .backward = causal_attention_backward,
                   .step = causal_attention_step,
                   .step_fuses_rotary = [](const CausalAttentionStep& p) { return causal_attention_step_fuses_rotary(p, this_gpu()); },
                   .joint_gradients = true,
                   .step_takes_tokens = [](const CausalAttentionStep& p) { return causal_attention_takes_tokens(p, this_gpu()); },
                   .step_tokens = causal_attention_tokens});
}

}  // namespace based::kernels::cuda
