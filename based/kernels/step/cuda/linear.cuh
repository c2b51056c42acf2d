// Linear layers of a step program, and the operations fused with them: SwiGLU and the short convolution.
#pragma once
#include "based/kernels/step/cuda/int8_rows.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

struct StepLinear : StepThread {
  using StepThread::StepThread;

  // Waits until the next `count` stages have arrived, at most kStepTileStages. Called by whole warps.
  __device__ __forceinline__ void await_stages(int count) const {
    for_warp(lane, count, [&](int i) {
      const RingPlace next = kWarpArrivals == 1 ? lane_stage : advanced(lane_stage, i, program.stages);
      barrier_wait(shared_address(&shared.full[next.slot]), next.phase);
    });
    __syncwarp();  // makes the data that one lane waited for visible to all lanes
  }
  __device__ __forceinline__ void release_stages(int count) {
    __syncwarp();
    for_warp(lane, count, [&](int i) {
      const RingPlace next = kWarpArrivals == 1 ? lane_stage : advanced(lane_stage, i, program.stages);
      barrier_arrive(shared_address(&shared.empty[next.slot]));
    });
    lane_stage = advanced(lane_stage, count, program.stages);
    stage_at += count * step_stage_bytes(threads), stage_at = min(stage_at, stage_at - ring_bytes);
  }
  // The buffer for the sums of the rows that are multiplied now; threads that still finish the previous rows read the other buffer.
  __device__ __forceinline__ float* sums() const { return shared.sums + sums_half * (kStepRows * kStepSumStride); }
  // Multiplies the next `rows` rows of the ring, 2^shift a stage, by x in shared memory, and stores each warp's partial sums to sums():
  // [row][warp]. A lane loads 8 consecutive elements of a row with one load. The mma expects the registers of an A operand from two rows, g
  // and g + 8, so the 8 elements act as two rows: elements 0, 1, 4 and 5 as row g, the others as row g + 8. Even columns of B hold the x of
  // the former, odd columns that of the latter, and the row's sum is the sum of two accumulators. Rows are a multiple of 128 bytes apart,
  // so lanes of odd rows read neighbouring groups of 32 elements in swapped order to avoid bank conflicts; columns 2, 3, 6 and 7 of B hold
  // x in that order. As a result lane `odd` of the four lanes of a row has the row's whole sum.
  template <int kGroups>
  __device__ __forceinline__ void multiply(int rows, int shift) {
    constexpr int kGroupsPerChunk = kGroups < 2 ? 1 : 2, kChunks = kGroups / kGroupsPerChunk;
    const int row = lane / 4, odd = row % 2, first_unit = warp * kGroups * 4 + lane % 4;
    uint64_t x[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int unit = first_unit + 4 * (kGroups > 1 ? j ^ (row / 2 % 2) : j);
      const uint32_t* words = reinterpret_cast<const uint32_t*>(&shared.x[unit]) + odd;
      x[j] = two_words(words[0], words[2]);
    }
    const uint32_t row_bytes = kGroups * 2 * threads, row_at = row * row_bytes, swap = kGroups > 1 ? 64 * odd : 0;
    const uint32_t lane_at = ring + 16 * first_unit + swap;  // for even groups; 2 · swap less for odd ones
    float* to = sums() + row * kStepSumStride + warp;
#pragma unroll 1
    for (int first = 0; first < rows; first += kStepTileRows, to += kStepTileRows * kStepSumStride) {
      const int tile = min(rows - first, kStepTileRows), stages = (tile + (1 << shift) - 1) >> shift;
      await_stages(stages);
      uint32_t from[2];  // addresses of row and row + 8
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // stages have no padding, so the rows of consecutive stages are contiguous
        const uint32_t in_ring = stage_at + min(row_at + i * 8 * row_bytes, (tile - 1) * row_bytes);
        from[i] = lane_at + min(in_ring, in_ring - ring_bytes);  // wraps around at the end of the ring
      }
      uint4 a[2][2][kGroupsPerChunk];  // double buffer: loads are one chunk before the multiplications
      float d[2][4] = {};
#pragma unroll
      for (int chunk = 0; chunk <= kChunks; ++chunk) {
#pragma unroll
        for (int i = 0; chunk < kChunks && i < 2 * kGroupsPerChunk; ++i)
          a[chunk % 2][i % 2][i / 2] = load_shared_16(from[i % 2] - (i / 2 == 0 ? 0 : 2 * swap) + 64 * (chunk * kGroupsPerChunk + i / 2));
        if (chunk == kChunks - 1) release_stages(stages);
#pragma unroll
        for (int i = 0; chunk > 0 && i < 2 * kGroupsPerChunk; ++i)
          mma_16x8x16(d[i % 2], a[(chunk - 1) % 2][i % 2][i / 2], x[(chunk - 1) * kGroupsPerChunk + i / 2]);
      }
      if (lane % 4 == odd) to[0] = d[0][0] + d[0][3], to[8 * kStepSumStride] = d[1][0] + d[1][3];
    }
  }
  // Sum of a row over all warps.
  __device__ __forceinline__ float row_sum(int row) const {
    const auto* parts = reinterpret_cast<const float4*>(sums() + row * kStepSumStride);
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
  // The companions of one output; loaded before its sums are complete.
  struct Extras {
    bf16 bias = {}, gate_bias = {}, taps[3] = {}, taps_bias = {};
    float2 old = make_float2(0, 0);
  };
  __device__ __forceinline__ Extras extras_of(const StepInstruction& step, int out, int in_share) const {
    Extras e;
    const Linear& p = step.arguments.linear.linear;
    if (const auto* bias = static_cast<const bf16*>(p.bias); bias != nullptr) {
      e.bias = companion(kStepBias, bias, out, in_share);
      if (step.kind != StepKind::linear) e.gate_bias = companion(kStepGateBias, bias + p.out / 2, out, in_share);
    }
    if (step.kind != StepKind::conv) return e;
    const ShortConv& c = step.arguments.linear.conv;
    const auto *taps = static_cast<const bf16*>(c.weight), *bias = static_cast<const bf16*>(c.bias);
#pragma unroll
    for (int i = 0; i < 3; ++i) e.taps[i] = companion(kStepTaps, taps, 3 * out + i, 3 * in_share + i);
    if (bias != nullptr) e.taps_bias = companion(kStepTapsBias, bias, out, in_share);
    e.old = companion(kStepState, reinterpret_cast<const float2*>(c.state), out, in_share);
    return e;
  }
  __device__ __forceinline__ void finish(const StepInstruction& step, int out, float value, float gate, const Extras& e) const {
    const Linear& p = step.arguments.linear.linear;
    value += to_float(e.bias), gate += to_float(e.gate_bias);
    if (step.kind == StepKind::swiglu) value *= gate * sigmoid(gate);
    if (step.kind != StepKind::conv) return send(step, p.y, out, value);
    const bf16 rounded = from_float<bf16>(value), rounded_gate = from_float<bf16>(gate);  // rounded as the output of the linear layer
    const ShortConv& c = step.arguments.linear.conv;
    const auto tap = [&e](int i) { return to_float(e.taps[i]); };
    const float x = to_float(rounded), z = fmaf(tap(2), x, fmaf(tap(1), e.old.y, fmaf(tap(0), e.old.x, to_float(e.taps_bias))));
    send(step, c.y, out, (c.silu ? z * sigmoid(z) : z) * to_float(rounded_gate));
    if ((step.stores & 2) != 0) static_cast<bf16*>(p.y)[out] = rounded, static_cast<bf16*>(p.y)[out + p.out / 2] = rounded_gate;
    reinterpret_cast<float2*>(c.state)[slot_of(c.slot) * c.channels + out] = make_float2(e.old.y, x);
  }

  // Multiplies the sums of an output and its gate by the scales of their int8 rows.
  __device__ __forceinline__ void multiply_by_scales(const StepInstruction& step, int in_share, float& value, float& gate) const {
    const float* scale = step.arguments.linear.scale;
    const int out = BlockShare(step.share).first + in_share;
    value *= companion(kStepScale, scale, out, in_share);
    if (step.kind != StepKind::linear) gate *= companion(kStepGateScale, scale + step.arguments.linear.linear.out / 2, out, in_share);
  }

  // Receives the warp's part of x and stores it to shared memory: four or eight elements a lane.
  __device__ __forceinline__ void load_x(const StepInstruction& step) const {
    const int count = 32 * step.groups, first = warp * count + 4 * lane, second = count > 128 ? first + 128 : first;
    if (4 * lane < count) {
      uint2 a, b;
      if (step.in[0] != nullptr) {
        uint4 v, w;
        do v = load_words4(step.in[0] + first), w = count > 128 ? load_words4(step.in[0] + second) : v;
        while (!has_arrived(v, tag) || !has_arrived(w, tag));
        a = elements(v), b = elements(w);
      } else {
        const void* x = step.arguments.linear.linear.x;
        a = receive4(nullptr, x, first, tag), b = receive4(nullptr, x, second, tag);
      }
      reinterpret_cast<uint2*>(shared.x)[first / 4] = a, reinterpret_cast<uint2*>(shared.x)[second / 4] = b;
    }
    __syncwarp();
  }
  __device__ __forceinline__ void multiply_int8(int groups, int rows, int shift) {
    switch (groups) {
      case 2: return multiply_int8_rows<2>(*this, rows, shift);
      case 4: return multiply_int8_rows<4>(*this, rows, shift);
      default: return multiply_int8_rows<8>(*this, rows, shift);
    }
  }
  __device__ __forceinline__ void multiply(int groups, int rows, int shift) {
    switch (groups) {
      case 1: return multiply<1>(rows, shift);
      case 2: return multiply<2>(rows, shift);
      case 4: return multiply<4>(rows, shift);
      default: return multiply<8>(rows, shift);
    }
  }
  // kInt8: whether the program has int8 weights.
  template <bool kInt8>
  __device__ __forceinline__ void apply_linear(const StepInstruction& step) {
    const bool pairs = step.kind != StepKind::linear;
    const BlockShare share(step.share);
    const int shift = step.stage_shift, half = (1 << shift) / 2,
              most = pairs ? kStepRows / 2 : kStepRows;  // most: outputs whose sums fit into a buffer
#pragma unroll 1
    for (int first = 0; first < share.count; first += most) {
      const int count = min(share.count - first, most);
      Extras extras;
      if (thread < count) extras = extras_of(step, share.first + first + thread, first + thread);
      if (first == 0 && !step.x_is_shared) load_x(step);
      // A stage of pairs holds the rows of the values, then the rows of their gates; the last stage may have fewer rows, at the same
      // offsets.
      const int rows = pairs ? (count + half - 1) >> (shift - 1) << shift : count;
      if (kInt8 && step.arguments.linear.scale != nullptr) {
        multiply_int8(step.groups, rows, shift);
      } else {
        multiply(step.groups, rows, shift);
      }
      compute_barrier();  // the partial sums of all warps are complete
      if (thread < count) {
        const int row = pairs ? (thread & ~(half - 1)) * 2 + (thread & (half - 1)) : thread;
        float value = row_sum(row), gate = pairs ? row_sum(row + half) : 0.0F;
        if (kInt8 && step.arguments.linear.scale != nullptr) multiply_by_scales(step, first + thread, value, gate);
        finish(step, share.first + first + thread, value, gate, extras);
      }
      sums_half ^= 1;
    }
  }
};

}  // namespace based::kernels::cuda::detail
#endif
