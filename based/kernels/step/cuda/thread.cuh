// A computing thread of a step program: the registers that it keeps from instruction to instruction, and the norm. The other instructions
// are added by derived structs (linear.cuh, taylor.cuh, window.cuh), which share these registers.
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
    compute_barrier();
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kStepMostWarps / 4; ++i) {  // entries without a warp are 0
      const float4 v = reinterpret_cast<const float4*>(shared.warps)[i];
      all.x += v.x, all.y += v.y, all.z += v.z, all.w += v.w;
    }
    return (all.x + all.y) + (all.z + all.w);
  }

  __device__ void normalise(const StepInstruction& step) {
    const RmsNorm& p = step.arguments.norm;
    const int first = 4 * thread;
    const bool active = first < p.width;
    float weight[4] = {}, add[4] = {};
    if (active) load_floats<4>(reinterpret_cast<const bf16*>(shared.slots[slot.slot].companions) + first, weight);
    if (active) {
      uint2 raw = make_uint2(0, 0);
      if (p.add != nullptr) raw = receive4(step.in[0], p.add, first, tag);
      if (step.loads_x) {
        const float4 x = __ldcg(reinterpret_cast<const float4*>(p.x) + thread);
        sum[0] = x.x, sum[1] = x.y, sum[2] = x.z, sum[3] = x.w;
      }
      add[0] = low_float(raw.x), add[1] = high_float(raw.x), add[2] = low_float(raw.y), add[3] = high_float(raw.y);
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = active ? sum[i] + add[i] : 0.0F, squares = fmaf(sum[i], sum[i], squares);
    const float r = rsqrtf(sum_over_threads(squares) / static_cast<float>(p.width) + p.eps);
    if (deferred_store_to != nullptr)
      *deferred_store_to = deferred_store,
      deferred_store_to = nullptr;  // this norm's input depends on all blocks, so all have read the old state
    if (!active) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) weight[i] *= sum[i] * r;
    const uint2 y = make_uint2(pack_bf16(weight[0], weight[1]), pack_bf16(weight[2], weight[3]));
    reinterpret_cast<uint2*>(shared.x)[thread] = y;
    if (BlockShare(step.share).index != 0) return;
    if ((step.stores & 1) != 0) reinterpret_cast<uint2*>(p.y)[thread] = y;
    if (p.sum != nullptr) reinterpret_cast<float4*>(p.sum)[thread] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    if ((step.stores & 2) != 0 && thread == 0) *p.inverse_rms = r;
  }

  __device__ __forceinline__ static int64_t slot_of(const int64_t* slot) { return slot != nullptr ? *slot : 0; }
};

}  // namespace based::kernels::cuda::detail
#endif
