// Linear layers of a step program of several tokens. Each row of weights is read once, and its sums have the order of linear.cuh.
#pragma once
#include "based/kernels/step/cuda/linear.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

// Multiplies the next `rows` rows of the ring, 2^shift a stage, by the tokens' x, `pitch` units of 8 elements apart, and stores each warp's
// partial sums to t.shared.sums: [token][row][warp]. A lane loads 8 consecutive elements of a row as multiply_rows() does, which sums
// elements 0, 1, 4 and 5 of all lanes with one mma, and the others with another column of it. Here each of these sums has an mma of its
// own, of rows g and g + 8, and the columns of B are four tokens, in both orders of the groups.
template <int kGroups, class Tokens>
__device__ __forceinline__ void multiply_rows_of_tokens(StepThread<Tokens>& t, int rows, int shift, int pitch) {
  constexpr int kQuads = (Tokens::kTokens + 3) / 4, kPitch = step_sums_pitch(Tokens::kTokens);
  constexpr bool kKeepsX = kQuads * kGroups <= 4;                                                    // in registers
  const int row = t.lane / 4, odd = kGroups > 1 ? row % 2 : 0, swapped = kGroups > 1 ? row / 4 : 0;  // swapped: as a column of B
  const int first_unit = t.warp * kGroups * 4 + t.lane % 4;
  const uint4* x[kQuads];
  uint4 kept[kKeepsX ? kQuads : 1][kKeepsX ? kGroups : 1];
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    x[quad] = t.shared.x() + min(4 * quad + row % 4, t.program.tokens - 1) * pitch + first_unit;
#pragma unroll
    for (int group = 0; kKeepsX && group < kGroups; ++group) kept[quad][group] = x[quad][4 * (group ^ swapped)];
  }
  const uint32_t row_bytes = kGroups * 2 * t.threads, row_at = row * row_bytes, swap = 64 * odd;
  const uint32_t lane_at = t.ring + 16 * first_unit + swap;  // for even groups; 2 · swap less for odd ones
  float* to = t.shared.sums + t.lane % 2 * 2 * kPitch + row * kStepSumStride + t.warp;
#pragma unroll 1
  for (int first = 0; first < rows; first += kStepTileRows, to += kStepTileRows * kStepSumStride) {
    uint32_t from[2];
    const int stages = t.await_tile(min(rows - first, kStepTileRows), shift, lane_at, row_at, row_bytes, from);
    uint4 a[2][2];                                    // double buffer
    float low[kQuads][4] = {}, high[kQuads][4] = {};  // sums of elements 0, 1, 4 and 5, and of the others
#pragma unroll
    for (int next = 0; next <= kGroups; ++next) {
#pragma unroll
      for (int i = 0; next < kGroups && i < 2; ++i) a[next % 2][i] = load_shared_16(from[i] - (next % 2 == 0 ? 0 : 2 * swap) + 64 * next);
      if (next == kGroups - 1) t.release_stages(stages);
      if (next == 0) continue;
      const int group = next - 1;
      const uint4 top = a[group % 2][0], bottom = a[group % 2][1];
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        const uint4 b = kKeepsX ? kept[kKeepsX ? quad : 0][kKeepsX ? group : 0] : x[quad][4 * (group ^ swapped)];
        mma_16x8x16(low[quad], make_uint4(top.x, bottom.x, top.z, bottom.z), two_words(b.x, b.z));
        mma_16x8x16(high[quad], make_uint4(top.y, bottom.y, top.w, bottom.w), two_words(b.y, b.w));
      }
    }
    if (t.lane % 4 / 2 != odd) continue;
#pragma unroll
    for (int i = 0; i < 2 * kQuads; ++i) {
      const int quad = i / 2, column = i % 2, token = 4 * quad + column;  // after the lane's first token
      if (token + t.lane % 2 * 2 >= t.program.tokens) continue;
      to[token * kPitch] = low[quad][column] + high[quad][column];
      to[token * kPitch + 8 * kStepSumStride] = low[quad][2 + column] + high[quad][2 + column];
    }
  }
}

// Receives the warp's part of each token's x and stores it to shared memory.
template <class Tokens>
__device__ __forceinline__ void receive_x_of_tokens(StepThread<Tokens>& t, const StepInstruction& step, int pitch) {
  const void* memory = step.arguments.linear.linear.x;
  const int elements_of_warp = 32 * step.groups;
#pragma unroll 1
  for (int at = 4 * t.lane; at < elements_of_warp; at += 128) {
    const int element = t.warp * elements_of_warp + at;
#pragma unroll
    for (int first = 0; first < Tokens::kTokens; first += 4) {
      uint2 x[4];
      receive4_tokens(t, step, 0, memory, element, first, 1, x);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + i < t.program.tokens) reinterpret_cast<uint2*>(t.shared.x() + (first + i) * pitch)[element / 4] = x[i];
    }
  }
  __syncwarp();  // the warp's part of x is complete; other warps do not read it
}

// As step_linear().
template <class Tokens>
__device__ __forceinline__ void step_linear_of_tokens(StepThread<Tokens>& t, const StepInstruction& step) {
  const Linear& p = step.arguments.linear.linear;
  const bool pairs = step.kind != StepKind::linear;
  const BlockShare share(step.share);
  constexpr int kRows = step_rows_of_tokens(Tokens::kTokens);
  const int shift = step.stage_shift, half = (1 << shift) / 2, most = pairs ? kRows / 2 : kRows;  // most: outputs
  const int pitch = static_cast<int>(p.in) / 8 + 4;
  const int in_pass = t.thread / Tokens::kTokens, token = t.thread % Tokens::kTokens;  // the thread's output
  if (!step.x_is_shared && share.count > 0) receive_x_of_tokens(t, step, pitch);
#pragma unroll 1
  for (int first = 0; first < share.count; first += most) {
    const int count = min(share.count - first, most), out = share.first + first + in_pass;
    const bool finishes = in_pass < count && token < t.program.tokens;
    OutputCompanions with;
    if (finishes) with.load(t, step, out, first + in_pass);

    // A stage of pairs holds the rows of the values, then the rows of their gates.
    const int rows = pairs ? (count + half - 1) >> (shift - 1) << shift : count;
    switch (step.groups) {
      case 1: multiply_rows_of_tokens<1>(t, rows, shift, pitch); break;
      case 2: multiply_rows_of_tokens<2>(t, rows, shift, pitch); break;
      case 4: multiply_rows_of_tokens<4>(t, rows, shift, pitch); break;
      default: multiply_rows_of_tokens<8>(t, rows, shift, pitch);
    }
    t.compute_barrier();  // the partial sums of all warps are complete

    if (t.thread < kStepTokenRows) {  // whole warps
      const auto row_sum = [&](int row) {
        return t.row_sum(t.shared.sums + token * step_sums_pitch(Tokens::kTokens) + row * kStepSumStride);
      };
      const int row = pairs ? (in_pass & ~(half - 1)) * 2 + (in_pass & (half - 1)) : in_pass;
      float value = finishes ? row_sum(row) : 0.0F, gate = finishes && pairs ? row_sum(row + half) : 0.0F;
      value += to_float(with.bias), gate += to_float(with.gate_bias);
      if (step.kind == StepKind::swiglu) value *= gate * sigmoid(gate);
      if (step.kind != StepKind::conv) {
        if (finishes) t.send(step, p.y, token, out, value);
      } else {
        const ShortConvTokens& c = step.arguments.linear.conv;
        const bf16 rounded = from_float<bf16>(value), rounded_gate = from_float<bf16>(gate);
        // The inputs of the two tokens before, which adjacent lanes have.
        const float x = to_float(rounded);
        float older = __shfl_up_sync(~0U, x, 1), oldest = __shfl_up_sync(~0U, x, 2);
        if (token == 0) older = with.old.y, oldest = with.old.x;
        if (token == 1) oldest = with.old.y;
        if (finishes) {
          t.send(step, c.step.y, token, out, with.convolved(c.step.silu, oldest, older, x) * to_float(rounded_gate));
          if ((step.stores & 2) != 0) {
            bf16* y = static_cast<bf16*>(p.y) + token * p.y_stride + out;
            y[0] = rounded, y[p.out / 2] = rounded_gate;
          }
          float* state = token + 1 == t.program.tokens ? c.step.state + slot_of(c.step.slot) * c.step.channels * 2
                         : c.kept_state != nullptr     ? c.kept_state + token * c.step.channels * 2
                                                       : nullptr;
          if (state != nullptr) reinterpret_cast<float2*>(state)[out] = make_float2(older, x);
        }
      }
    }
    if (first + most < share.count) t.compute_barrier();  // the sums have been read
  }
}

}  // namespace based::kernels::cuda::detail
#endif
