// A computing thread of a step program: the registers that it keeps from instruction to instruction. The instructions are functions that
// take it (here the norm, the others in linear.cuh, taylor.cuh and window.cuh).
#pragma once
#include "based/kernels/step/cuda/mailbox.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

template <class Tokens>
struct StepThread {
  static constexpr int kTokens = Tokens::kTokens, kHeld = Tokens::kHeld;
  using Shared = StepShared<kTokens>;
  const StepProgram& program;
  Shared& shared;
  const uint32_t ring;
  const int threads, thread, lane, warp;
  const uint32_t ring_bytes;
  uint32_t stage_at = 0;         // byte offset of the next stage in the ring
  RingPlace lane_stage, slot;    // lane_stage: of the next stages, the one whose barriers this lane handles
  const uint32_t tag;            // launch number in the upper half
  float sum[kHeld][4] = {};      // elements of the residual stream, see StreamShare
  float4 prefetched[kStepHeld];  // part of a state, loaded by prefetch_taylor or prefetch_window
  float prefetched_sum = 0;
  int sums_half = 0;
  uint32_t deferred_store = 0,
           *deferred_store_to = nullptr;  // a word of a state and its address; stored only after all blocks have read the old state

  __device__ __forceinline__ StepThread(const StepProgram& p, Shared& s, uint32_t r)
      : program(p),
        shared(s),
        ring(r),
        threads(p.threads),
        thread(static_cast<int>(threadIdx.x)),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        ring_bytes(p.stages * step_stage_bytes(p.threads)),
        tag((__ldcg(p.counters) + 1) << 16) {
    if (kWarpArrivals == 1) lane_stage.slot = lane % kStepTileStages;
  }

  __device__ __forceinline__ void compute_barrier() const { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }
  // Sends an element of a token's output to the mailbox, if there is one, and stores it where the instruction asks for it.
  __device__ __forceinline__ void send(const StepInstruction& step, void* y, int token, int element, float value) const {
    const bf16 rounded = from_float<bf16>(value);
    const int at = kTokens == 1 ? element : token * step.out_stride + element;
    if (step.out != nullptr)
      asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(step.out + at), "r"(tag | __bfloat16_as_ushort(rounded)) : "memory");
    if ((step.stores & 1) != 0) static_cast<bf16*>(y)[at] = rounded;
  }
  // Stores the warp's sum, for sum_of_warps() after a compute_barrier.
  __device__ __forceinline__ void store_warp_sum(int token, int index, float x) const {
    x = sum_over_warp(x);
    if (lane == 0) shared.warps[token][index] = x;
  }
  // The sum of a token's stored sums.
  __device__ __forceinline__ float sum_of_warps(int token) const {
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kStepMostWarps / 4; ++i) {  // entries without a warp are 0
      const float4 v = reinterpret_cast<const float4*>(shared.warps[token])[i];
      all.x += v.x, all.y += v.y, all.z += v.z, all.w += v.w;
    }
    return (all.x + all.y) + (all.z + all.w);
  }

  // Waits until the next `count` stages have arrived, at most kStepTileStages. Called by whole warps.
  __device__ __forceinline__ void await_stages(int count) const {
    for_warp(lane, count, [&](int i) {
      const RingPlace next = kWarpArrivals == 1 ? lane_stage : advanced(lane_stage, i, program.stages);
      barrier_wait(shared_address(&shared.full[next.slot]), next.phase);
    });
    __syncwarp();  // makes the data that one lane waited for visible to all lanes
  }
  __device__ __forceinline__ void release_stages(int count) {
    __syncwarp();  // all lanes have read the stages
    for_warp(lane, count, [&](int i) {
      const RingPlace next = kWarpArrivals == 1 ? lane_stage : advanced(lane_stage, i, program.stages);
      barrier_arrive(shared_address(&shared.empty[next.slot]));
    });
    lane_stage = advanced(lane_stage, count, program.stages);
    stage_at += count * step_stage_bytes(threads), stage_at = min(stage_at, stage_at - ring_bytes);
  }
  // One token: the buffer for the sums of the rows that are multiplied now; threads that still finish the previous rows read the other
  // buffer.
  __device__ __forceinline__ float* sums() const { return shared.sums + sums_half * (Shared::kSums / 2); }
  // Waits for the next tile, of `rows` rows, 2^shift a stage, and returns its number of stages. `from`: the addresses in the ring of an
  // element of a row of the tile, `row_at` bytes after its begin, and of the row 8 after it. `at`: that of the element in the ring's first
  // row.
  __device__ __forceinline__ int await_tile(int rows, int shift, uint32_t at, uint32_t row_at, uint32_t row_bytes,
                                            uint32_t (&from)[2]) const {
    const int stages = (rows + (1 << shift) - 1) >> shift;
    await_stages(stages);
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // stages have no padding, so the rows of consecutive stages are contiguous
      const uint32_t in_ring = stage_at + min(row_at + i * 8 * row_bytes, (rows - 1) * row_bytes);
      from[i] = at + min(in_ring, in_ring - ring_bytes);  // wraps around at the end of the ring
    }
    return stages;
  }
  // The sum of a row over the warps, from its sums in shared memory.
  __device__ __forceinline__ float row_sum(const float* of_warps) const {
    const auto* parts = reinterpret_cast<const float4*>(of_warps);
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kStepMostWarps / 4; ++i) {
      const float4 v = parts[i];
      const int there = i < kStepFewestWarps / 4 ? 4 : threads / 32 - 4 * i;  // entries of warps that do not exist are stale
      all.x += there > 0 ? v.x : 0, all.y += there > 1 ? v.y : 0, all.z += there > 2 ? v.z : 0, all.w += there > 3 ? v.w : 0;
    }
    return (all.x + all.y) + (all.z + all.w);
  }
  // Element `element` of a companion. `memory` is the source in global memory; `in_share` is the element's index in the block's share.
  template <typename T>
  __device__ __forceinline__ T companion(int source, const T* memory, int element, int in_share) const {
    const char* part = shared.slots[slot.slot].companions + source * StepSlot::kPart;
    const auto odd = reinterpret_cast<uintptr_t>(memory + (element - in_share)) % 16;
    return *reinterpret_cast<const T*>(part + odd + in_share * sizeof(T));
  }
};

// Receives four elements, `first` and after it, of kCount tokens: `token` and those at intervals of `interval`. They come from mailbox
// number `number` or, where there is none, from memory. The words of four tokens are polled at once: those of more tokens, which arrive at
// almost the same time, would take registers, and polls of them would delay all words.
template <class Tokens, int kCount>
__device__ __forceinline__ void receive4_tokens(const StepThread<Tokens>& t, const StepInstruction& step, int number, const void* memory,
                                                int first, int token, int interval, uint2 (&to)[kCount]) {
  constexpr int kAtOnce = kCount < 4 ? kCount : 4;
  const auto at = [&](int i) {
    return Tokens::kTokens == 1 ? first : min(token + i * interval, t.program.tokens - 1) * step.in_stride[number] + first;
  };
  const uint32_t* in = step.in[number];
#pragma unroll
  for (int begin = 0; begin < kCount; begin += kAtOnce) {
    if (in == nullptr) {
#pragma unroll
      for (int i = begin; i < begin + kAtOnce; ++i)
        to[i] = __ldcg(reinterpret_cast<const uint2*>(static_cast<const bf16*>(memory) + at(i)));
      continue;
    }
    uint4 v[kAtOnce];
    bool arrived;
    do {
      arrived = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) v[i] = load_words4(in + at(begin + i));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) arrived &= has_arrived(v[i], t.tag);
    } while (!arrived);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) to[begin + i] = elements(v[i]);
  }
}

// A lane's elements of its warp's part of x: 4 lane … 4 lane + 3, and the same plus 128 if the part has 256.
struct WarpInput {
  uint2 first, second;
};

__device__ __forceinline__ int64_t slot_of(const int64_t* slot) { return slot != nullptr ? *slot : 0; }

// A thread's part of the residual stream: elements 4 at … 4 at + 3 of tokens first, first + interval, … The threads of a token are
// adjacent, and its warps are numbered by `warp`.
struct StreamShare {
  int at, first = 0, interval = 1, warp;
  bool any;  // whether the thread keeps anything
  template <class Tokens>
  __device__ __forceinline__ StreamShare(const StepThread<Tokens>& t, int width) : at(t.thread), warp(t.warp), any(4 * t.thread < width) {
    if constexpr (Tokens::kHeld < Tokens::kTokens) {
      interval = Tokens::kTokens / Tokens::kHeld;
      first = 4 * t.thread / width, at -= first * width / 4, warp -= first * width / 128, any = first < interval;
    }
  }
};

// The norm: adds to the residual stream, and stores the normalised vectors to shared memory.
template <class Tokens>
__device__ __forceinline__ void step_norm(StepThread<Tokens>& t, const StepInstruction& step) {
  const RmsNorm& p = step.arguments.norm;
  const int width = static_cast<int>(p.width);
  const StreamShare share(t, width);
  const auto token_of = [&](int i) { return Tokens::kTokens == 1 ? 0 : share.first + i * share.interval; };
  const auto is_token = [&](int i) { return Tokens::kTokens == 1 || token_of(i) < t.program.tokens; };
  float weight[4] = {};
  if (share.any) load_floats<4>(reinterpret_cast<const bf16*>(t.shared.slots[t.slot.slot].companions) + 4 * share.at, weight);
  uint2 raw[Tokens::kHeld] = {};
  if (share.any && p.add != nullptr) receive4_tokens(t, step, 0, p.add, 4 * share.at, share.first, share.interval, raw);
#pragma unroll
  for (int i = 0; i < Tokens::kHeld; ++i) {
    float(&sum)[4] = t.sum[i];
    if (share.any && step.loads_x && is_token(i)) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(p.x) + token_of(i) * (width / 4) + share.at);
      sum[0] = x.x, sum[1] = x.y, sum[2] = x.z, sum[3] = x.w;
    }
    const float add[4] = {low_float(raw[i].x), high_float(raw[i].x), low_float(raw[i].y), high_float(raw[i].y)};
    float squares = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] = share.any ? sum[e] + add[e] : 0.0F, squares = fmaf(sum[e], sum[e], squares);
    if (is_token(i) && (share.any || Tokens::kHeld == Tokens::kTokens)) t.store_warp_sum(token_of(i), share.warp, squares);
  }
  t.compute_barrier();  // the warps' sums are complete
  if (t.deferred_store_to != nullptr)
    *t.deferred_store_to = t.deferred_store,
    t.deferred_store_to = nullptr;  // this norm's input depends on all blocks, so all have read the old state
  if (!share.any) return;
  const bool stores = BlockShare(step.share).index == 0;
#pragma unroll
  for (int i = 0; i < Tokens::kHeld; ++i) {
    if (!is_token(i)) break;
    const int token = token_of(i), at = token * (width / 4) + share.at;
    const float r = rsqrtf(t.sum_of_warps(token) / static_cast<float>(p.width) + p.eps);
    float y[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) y[e] = weight[e] * (t.sum[i][e] * r);
    const uint2 packed = make_uint2(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]));
    reinterpret_cast<uint2*>(t.shared.x() + token * (width / 8 + 4))[share.at] = packed;
    if (!stores) continue;
    if ((step.stores & 1) != 0) reinterpret_cast<uint2*>(p.y)[at] = packed;
    if (p.sum != nullptr) reinterpret_cast<float4*>(p.sum)[at] = make_float4(t.sum[i][0], t.sum[i][1], t.sum[i][2], t.sum[i][3]);
    if ((step.stores & 2) != 0 && share.at == 0) p.inverse_rms[token] = r;
  }
}

}  // namespace based::kernels::cuda::detail
#endif
