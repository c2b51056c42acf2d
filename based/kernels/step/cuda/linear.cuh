// Linear layers of a step program, and the operations fused with them: SwiGLU and the short convolution.
#pragma once
#include "based/kernels/step/cuda/int8_rows.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

// Multiplies the next `rows` rows of the ring, 2^shift a stage, by x in shared memory, and stores each warp's partial sums to t.sums():
// [row][warp]. A lane loads 8 consecutive elements of a row with one load. The mma expects the registers of an A operand from two rows, g
// and g + 8, so the 8 elements act as two rows: elements 0, 1, 4 and 5 as row g, the others as row g + 8. Even columns of B hold the x of
// the former, odd columns that of the latter, and the row's sum is the sum of two accumulators. Rows are a multiple of 128 bytes apart,
// so lanes of odd rows read neighbouring groups of 32 elements in swapped order to avoid bank conflicts; columns 2, 3, 6 and 7 of B hold
// x in that order. As a result lane `odd` of the four lanes of a row has the row's whole sum.
template <int kGroups>
__device__ __forceinline__ void multiply_rows(StepThread<OneToken>& t, int rows, int shift) {
  constexpr int kGroupsPerChunk = kGroups < 2 ? 1 : 2, kChunks = kGroups / kGroupsPerChunk;
  const int row = t.lane / 4, odd = row % 2, first_unit = t.warp * kGroups * 4 + t.lane % 4;
  uint64_t x[kGroups];
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int unit = first_unit + 4 * (kGroups > 1 ? j ^ (row / 2 % 2) : j);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(&t.shared.x()[unit]) + odd;
    x[j] = two_words(words[0], words[2]);
  }
  const uint32_t row_bytes = kGroups * 2 * t.threads, row_at = row * row_bytes, swap = kGroups > 1 ? 64 * odd : 0;
  const uint32_t lane_at = t.ring + 16 * first_unit + swap;  // for even groups; 2 · swap less for odd ones
  float* to = t.sums() + row * kStepSumStride + t.warp;
#pragma unroll 1
  for (int first = 0; first < rows; first += kStepTileRows, to += kStepTileRows * kStepSumStride) {
    uint32_t from[2];
    const int stages = t.await_tile(min(rows - first, kStepTileRows), shift, lane_at, row_at, row_bytes, from);
    uint4 a[2][2][kGroupsPerChunk];  // double buffer: loads are one chunk before the multiplications
    float d[2][4] = {};
#pragma unroll
    for (int chunk = 0; chunk <= kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; chunk < kChunks && i < 2 * kGroupsPerChunk; ++i)
        a[chunk % 2][i % 2][i / 2] = load_shared_16(from[i % 2] - (i / 2 == 0 ? 0 : 2 * swap) + 64 * (chunk * kGroupsPerChunk + i / 2));
      if (chunk == kChunks - 1) t.release_stages(stages);
#pragma unroll
      for (int i = 0; chunk > 0 && i < 2 * kGroupsPerChunk; ++i)
        mma_16x8x16(d[i % 2], a[(chunk - 1) % 2][i % 2][i / 2], x[(chunk - 1) * kGroupsPerChunk + i / 2]);
    }
    if (t.lane % 4 == odd) to[0] = d[0][0] + d[0][3], to[8 * kStepSumStride] = d[1][0] + d[1][3];
  }
}

// The companions of an output: biases, and a convolution's weights and state. They are requested early (request_instructions).
struct OutputCompanions {
  bf16 bias = {}, gate_bias = {}, taps[3] = {}, taps_bias = {};
  float2 old = make_float2(0, 0);

  template <class Tokens>
  __device__ __forceinline__ void load(const StepThread<Tokens>& t, const StepInstruction& step, int out, int in_share) {
    const Linear& p = step.arguments.linear.linear;
    if (const auto* source = static_cast<const bf16*>(p.bias); source != nullptr) {
      bias = t.companion(kStepBias, source, out, in_share);
      if (step.kind != StepKind::linear) gate_bias = t.companion(kStepGateBias, source + p.out / 2, out, in_share);
    }
    if (step.kind != StepKind::conv) return;
    const ShortConv& c = step.arguments.linear.conv.step;
    const auto *taps_source = static_cast<const bf16*>(c.weight), *bias_source = static_cast<const bf16*>(c.bias);
#pragma unroll
    for (int i = 0; i < 3; ++i) taps[i] = t.companion(kStepTaps, taps_source, 3 * out + i, 3 * in_share + i);
    if (bias_source != nullptr) taps_bias = t.companion(kStepTapsBias, bias_source, out, in_share);
    old = t.companion(kStepState, reinterpret_cast<const float2*>(c.state), out, in_share);
  }
  // The convolution of an input and the two before it.
  __device__ __forceinline__ float convolved(bool silu, float oldest, float older, float x) const {
    const float z = fmaf(to_float(taps[2]), x, fmaf(to_float(taps[1]), older, fmaf(to_float(taps[0]), oldest, to_float(taps_bias))));
    return silu ? z * sigmoid(z) : z;
  }
};

// Receives the warp's part of x from the mailbox, or reads it from memory.
__device__ __forceinline__ WarpInput receive_x(const StepThread<OneToken>& t, const StepInstruction& step) {
  const int elements_of_warp = 32 * step.groups, at = t.warp * elements_of_warp + 4 * t.lane,
            second = elements_of_warp > 128 ? at + 128 : at;
  WarpInput x{};
  if (4 * t.lane >= elements_of_warp) return x;
  if (step.in[0] == nullptr) {
    const void* memory = step.arguments.linear.linear.x;
    return {receive4(nullptr, memory, at, t.tag), receive4(nullptr, memory, second, t.tag)};
  }
  uint4 v, w;
  do v = load_words4(step.in[0] + at), w = elements_of_warp > 128 ? load_words4(step.in[0] + second) : v;
  while (!has_arrived(v, t.tag) || !has_arrived(w, t.tag));
  return {elements(v), elements(w)};
}
__device__ __forceinline__ WarpInput shared_x(const StepThread<OneToken>& t, int groups) {
  const uint2* x = reinterpret_cast<const uint2*>(t.shared.x()) + t.warp * 8 * groups + t.lane;
  const uint2 none = make_uint2(0, 0);
  return {t.lane < 8 * groups ? x[0] : none, t.lane + 32 < 8 * groups ? x[32] : none};
}
__device__ __forceinline__ void store_x(StepThread<OneToken>& t, int groups, const WarpInput& x) {
  uint2* to = reinterpret_cast<uint2*>(t.shared.x()) + t.warp * 8 * groups + t.lane;
  if (t.lane < 8 * groups) to[0] = x.first;
  if (t.lane + 32 < 8 * groups) to[32] = x.second;
  __syncwarp();  // the warp's part of x is complete; other warps do not read it
}

// Multiplies x by a block's rows of the weights and finishes the outputs: adds the bias and applies SwiGLU, or the short convolution and
// its gate. kInt8: whether the program has int8 weights.
template <bool kInt8>
__device__ __forceinline__ void step_linear(StepThread<OneToken>& t, const StepInstruction& step) {
  const bool pairs = step.kind != StepKind::linear;
  const BlockShare share(step.share);
  const int shift = step.stage_shift, half = (1 << shift) / 2,
            most = pairs ? kStepRows / 2 : kStepRows;  // most: outputs whose sums fit into a buffer
  const bool is_int8 = kInt8 && step.arguments.linear.scale != nullptr;
  float inverse = 0;  // int8: as store_digits() returns it
#pragma unroll 1
  for (int first = 0; first < share.count; first += most) {
    const int count = min(share.count - first, most);
    const int out = share.first + first + t.thread;  // the thread's output, if t.thread < count
    // Load the companions of the output before its sums are complete.
    OutputCompanions with;
    float scale = 0, gate_scale = 0;
    if (t.thread < count) {
      with.load(t, step, out, first + t.thread);
      if (is_int8) {
        const float* source = step.arguments.linear.scale;
        scale = step_has_companions(step.share) ? t.companion(kStepScale, source, out, first + t.thread) : __ldg(source + out);
        if (pairs) gate_scale = t.companion(kStepGateScale, source + step.arguments.linear.linear.out / 2, out, first + t.thread);
      }
    }

    if (first == 0) {
      if (is_int8) {
        uint32_t* digits = t.shared.digits() + t.warp * (kStepDigitBytes / 4);
        inverse = store_digits(step.x_is_shared ? shared_x(t, step.groups) : receive_x(t, step), digits, step.groups, t.lane);
      } else if (!step.x_is_shared) {
        store_x(t, step.groups, receive_x(t, step));
      }
    }

    // Multiply. A stage of pairs holds the rows of the values, then the rows of their gates; the last stage may have fewer rows, at the
    // same offsets.
    const int rows = pairs ? (count + half - 1) >> (shift - 1) << shift : count;
    if (is_int8) {
      switch (step.groups) {
        case 2: multiply_int8_rows<2>(t, rows, shift, inverse); break;
        case 4: multiply_int8_rows<4>(t, rows, shift, inverse); break;
        default: multiply_int8_rows<8>(t, rows, shift, inverse);
      }
    } else {
      switch (step.groups) {
        case 1: multiply_rows<1>(t, rows, shift); break;
        case 2: multiply_rows<2>(t, rows, shift); break;
        case 4: multiply_rows<4>(t, rows, shift); break;
        default: multiply_rows<8>(t, rows, shift);
      }
    }
    t.compute_barrier();  // the partial sums of all warps are complete

    if (t.thread < count) {
      // Add up the sums over the warps, of the output and of its gate.
      const auto row_sum = [&t](int row) { return t.row_sum(t.sums() + row * kStepSumStride); };
      const int row = pairs ? (t.thread & ~(half - 1)) * 2 + (t.thread & (half - 1)) : t.thread;
      float value = row_sum(row), gate = pairs ? row_sum(row + half) : 0.0F;
      const Linear& p = step.arguments.linear.linear;
      if (is_int8) value *= scale, gate *= gate_scale;
      value += to_float(with.bias), gate += to_float(with.gate_bias);
      if (step.kind == StepKind::swiglu) value *= gate * sigmoid(gate);
      if (step.kind != StepKind::conv) {
        t.send(step, p.y, 0, out, value);
      } else {
        // The short convolution of the value, times the gate; both are rounded as the output of the linear layer.
        const bf16 rounded = from_float<bf16>(value), rounded_gate = from_float<bf16>(gate);
        const ShortConv& c = step.arguments.linear.conv.step;
        const float x = to_float(rounded);
        t.send(step, c.y, 0, out, with.convolved(c.silu, with.old.x, with.old.y, x) * to_float(rounded_gate));
        if ((step.stores & 2) != 0) static_cast<bf16*>(p.y)[out] = rounded, static_cast<bf16*>(p.y)[out + p.out / 2] = rounded_gate;
        reinterpret_cast<float2*>(c.state)[slot_of(c.slot) * c.channels + out] = make_float2(with.old.y, x);
      }
    }
    t.sums_half ^= 1;
  }
}

}  // namespace based::kernels::cuda::detail
#endif
