// A computing thread of a step program: the registers that it keeps from instruction to instruction. The instructions are functions that
// take it (here the norm, the others in linear.cuh, taylor.cuh and window.cuh).
#pragma once
#include "based/kernels/step/cuda/mailbox.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

struct StepThread {
  const StepProgram& program;
  StepShared& shared;
  const uint32_t ring;
  const int threads, thread, lane, warp;
  const uint32_t ring_bytes;
  uint32_t stage_at = 0;         // byte offset of the next stage in the ring
  RingPlace lane_stage, slot;    // lane_stage: of the next stages, the one whose barriers this lane handles
  const uint32_t tag;            // launch number in the upper half
  float sum[4] = {};             // elements 4 thread … 4 thread + 3 of the residual stream
  float4 prefetched[kStepHeld];  // part of a state, loaded by prefetch_taylor or prefetch_window
  float prefetched_sum = 0;
  int sums_half = 0;
  uint32_t deferred_store = 0,
           *deferred_store_to = nullptr;  // a word of a state and its address; stored only after all blocks have read the old state

  __device__ __forceinline__ StepThread(const StepProgram& p, StepShared& s, uint32_t r)
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
  // Sends an element of an output to the mailbox, if there is one, and stores it where the instruction asks for it.
  __device__ __forceinline__ void send(const StepInstruction& step, void* y, int at, float value) const {
    const bf16 element = from_float<bf16>(value);
    if (step.out != nullptr)
      asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(step.out + at), "r"(tag | __bfloat16_as_ushort(element)) : "memory");
    if ((step.stores & 1) != 0) static_cast<bf16*>(y)[at] = element;
  }
  // Sum over the computing threads, returned to all of them. Contains one compute_barrier.
  __device__ __forceinline__ float sum_over_threads(float x) const {
    x = sum_over_warp(x);
    if (lane == 0) shared.warps[warp] = x;
    compute_barrier();  // the warps' sums are complete
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kStepMostWarps / 4; ++i) {  // entries without a warp are 0
      const float4 v = reinterpret_cast<const float4*>(shared.warps)[i];
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
  // The buffer for the sums of the rows that are multiplied now; threads that still finish the previous rows read the other buffer.
  __device__ __forceinline__ float* sums() const { return shared.sums + sums_half * (kStepRows * kStepSumStride); }
  // Element `element` of a companion. `memory` is the source in global memory; `in_share` is the element's index in the block's share.
  template <typename T>
  __device__ __forceinline__ T companion(int source, const T* memory, int element, int in_share) const {
    const char* part = shared.slots[slot.slot].companions + source * StepSlot::kPart;
    const auto odd = reinterpret_cast<uintptr_t>(memory + (element - in_share)) % 16;
    return *reinterpret_cast<const T*>(part + odd + in_share * sizeof(T));
  }
};

// A lane's elements of its warp's part of x: 4 lane … 4 lane + 3, and the same plus 128 if the part has 256.
struct WarpInput {
  uint2 first, second;
};

__device__ __forceinline__ int64_t slot_of(const int64_t* slot) { return slot != nullptr ? *slot : 0; }

// The norm: adds to the residual stream, and stores the normalised vector to shared memory.
__device__ inline void step_norm(StepThread& t, const StepInstruction& step) {
  const RmsNorm& p = step.arguments.norm;
  const int first = 4 * t.thread;
  const bool active = first < p.width;
  float weight[4] = {}, add[4] = {};
  if (active) load_floats<4>(reinterpret_cast<const bf16*>(t.shared.slots[t.slot.slot].companions) + first, weight);
  if (active) {
    uint2 raw = make_uint2(0, 0);
    if (p.add != nullptr) raw = receive4(step.in[0], p.add, first, t.tag);
    if (step.loads_x) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(p.x) + t.thread);
      t.sum[0] = x.x, t.sum[1] = x.y, t.sum[2] = x.z, t.sum[3] = x.w;
    }
    add[0] = low_float(raw.x), add[1] = high_float(raw.x), add[2] = low_float(raw.y), add[3] = high_float(raw.y);
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) t.sum[i] = active ? t.sum[i] + add[i] : 0.0F, squares = fmaf(t.sum[i], t.sum[i], squares);
  const float r = rsqrtf(t.sum_over_threads(squares) / static_cast<float>(p.width) + p.eps);
  if (t.deferred_store_to != nullptr)
    *t.deferred_store_to = t.deferred_store,
    t.deferred_store_to = nullptr;  // this norm's input depends on all blocks, so all have read the old state
  if (!active) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) weight[i] *= t.sum[i] * r;
  const uint2 y = make_uint2(pack_bf16(weight[0], weight[1]), pack_bf16(weight[2], weight[3]));
  reinterpret_cast<uint2*>(t.shared.x)[t.thread] = y;
  if (BlockShare(step.share).index != 0) return;
  if ((step.stores & 1) != 0) reinterpret_cast<uint2*>(p.y)[t.thread] = y;
  if (p.sum != nullptr) reinterpret_cast<float4*>(p.sum)[t.thread] = make_float4(t.sum[0], t.sum[1], t.sum[2], t.sum[3]);
  if ((step.stores & 2) != 0 && t.thread == 0) *p.inverse_rms = r;
}

}  // namespace based::kernels::cuda::detail
#endif
