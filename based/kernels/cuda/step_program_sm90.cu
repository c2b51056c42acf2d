// A whole step of one row in one kernel (see step_program.h). In each block one thread requests the block's rows of all weights, through a
// ring in shared memory and as far ahead as that reaches, and another what else the layers read; the others compute, layer after layer,
// and look into mailboxes for what other blocks make. Every sum has one owner and a fixed order. An instruction is executed once in a few
// microseconds, so its code is cold where it is long: loops are hardly unrolled.
#include <algorithm>

#include "based/kernels/cuda/feature_pair.cuh"
#include "based/kernels/cuda/rotary_angle.cuh"
#include "based/kernels/cuda/step_requests.cuh"
#include "based/kernels/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// Mailboxes. A word is written and read at once, so its tag says that its element has come; nothing else needs an order.
__device__ __forceinline__ uint4 peek4(const uint32_t* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ bool is_here(uint4 v, uint32_t tag) {
  return (((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 0xffff0000U) == 0;
}
__device__ __forceinline__ uint2 elements(uint4 v) { return make_uint2(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.z, v.w, 0x5410)); }
// Four elements, of a mailbox or of memory.
__device__ __forceinline__ uint2 receive4(const uint32_t* in, const void* memory, int first, uint32_t tag) {
  if (in == nullptr) return __ldcg(reinterpret_cast<const uint2*>(static_cast<const bf16*>(memory) + first));
  uint4 v;
  do v = peek4(in + first);
  while (!is_here(v, tag));
  return elements(v);
}
__device__ __forceinline__ float receive(const uint32_t* in, const void* memory, int at, uint32_t tag) {
  if (in == nullptr) return to_float(__ushort_as_bfloat16(__ldcg(static_cast<const unsigned short*>(memory) + at)));
  uint32_t v;
  do asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(in + at) : "memory");
  while (((v ^ tag) & 0xffff0000U) != 0);
  return low_float(v);
}
__device__ __forceinline__ uint4 as_uint4(float4 v) {
  return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
}
__device__ __forceinline__ float sum_over_warp(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0U, x, distance);
  return x;
}
__device__ __forceinline__ uint64_t two_words(uint32_t low, uint32_t high) {
  uint64_t both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
  return both;
}
// As in device.cuh, with neighbouring registers: otherwise they are moved there each time.
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], uint4 a, uint64_t b) {
  asm volatile(
      "{\n.reg .b32 low, high;\nmov.b64 {low, high}, %8;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {low, high}, {%0, %1, %2, %3};\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
__device__ __forceinline__ void unpack8(uint4 u, float (&x)[8]) {
  x[0] = low_float(u.x), x[1] = high_float(u.x), x[2] = low_float(u.y), x[3] = high_float(u.y);
  x[4] = low_float(u.z), x[5] = high_float(u.z), x[6] = low_float(u.w), x[7] = high_float(u.w);
}

// The threads that compute.
struct Computer {
  const StepProgram& program;
  StepShared& shared;
  const uint32_t ring;
  const int threads, thread, lane, warp;
  const uint32_t ring_bytes;
  uint32_t at = 0;         // the next stage, in the ring
  RingPlace mine, slot;    // the stage that the lane sees to of the next ones
  const uint32_t tag;      // of this launch, in the upper half
  float sum[4] = {};       // of the residual stream, elements 4 thread …
  float4 seen[kStepHeld];  // of a state, by prefetch_taylor or prefetch_window
  float seen_sum = 0;
  int sums_half = 0;
  uint32_t late = 0, *late_to = nullptr;  // a word of a state that other blocks read, until they have

  __device__ __forceinline__ Computer(const StepProgram& p, StepShared& s, uint32_t r)
      : program(p),
        shared(s),
        ring(r),
        threads(p.threads),
        thread(static_cast<int>(threadIdx.x)),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        ring_bytes(p.stages * step_stage_bytes(p.threads)),
        tag((__ldcg(p.counters) + 1) << 16) {
    if (kWarpArrivals == 1) mine.slot = lane % kStepTileStages;
  }

  __device__ __forceinline__ void compute_barrier() const { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }
  // An output's element, to whom it concerns.
  __device__ __forceinline__ void send(const StepInstruction& step, void* y, int at, float value) const {
    const bf16 element = from_float<bf16>(value);
    if (step.out != nullptr)
      asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(step.out + at), "r"(tag | __bfloat16_as_ushort(element)) : "memory");
    if ((step.stores & 1) != 0) static_cast<bf16*>(y)[at] = element;
  }
  // Sum over the block; every thread gets it. Meets once.
  __device__ __forceinline__ float sum_over_threads(float x) const {
    x = sum_over_warp(x);
    if (lane == 0) shared.warps[warp] = x;
    compute_barrier();
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kStepMostWarps / 4; ++i) {  // of no warp: 0
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
    if (late_to != nullptr) *late_to = late, late_to = nullptr;  // all blocks have sent what comes after the state was read
    if (!active) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) weight[i] *= sum[i] * r;
    const uint2 y = make_uint2(pack_bf16(weight[0], weight[1]), pack_bf16(weight[2], weight[3]));
    reinterpret_cast<uint2*>(shared.x)[thread] = y;
    if (BlockShare(step.share).place != 0) return;
    if ((step.stores & 1) != 0) reinterpret_cast<uint2*>(p.y)[thread] = y;
    if (p.sum != nullptr) reinterpret_cast<float4*>(p.sum)[thread] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    if ((step.stores & 2) != 0 && thread == 0) *p.inverse_rms = r;
  }

  // Until the next stages have come, kStepTileStages at most. By a warp.
  __device__ __forceinline__ void await_stages(int count) const {
    for_warp(lane, count, [&](int i) {
      const RingPlace next = kWarpArrivals == 1 ? mine : ahead(mine, i, program.stages);
      barrier_wait(shared_address(&shared.full[next.slot]), next.phase);
    });
    __syncwarp();  // what one lane has seen come is there for all
  }
  __device__ __forceinline__ void release_stages(int count) {
    __syncwarp();
    for_warp(lane, count, [&](int i) {
      const RingPlace next = kWarpArrivals == 1 ? mine : ahead(mine, i, program.stages);
      barrier_arrive(shared_address(&shared.empty[next.slot]));
    });
    mine = ahead(mine, count, program.stages);
    at += count * step_stage_bytes(threads), at = min(at, at - ring_bytes);
  }
  // Of the rows that are multiplied now; who finishes those before reads the other half.
  __device__ __forceinline__ float* sums() const { return shared.sums + sums_half * (kStepRows * kStepSumStride); }
  // The sums of `rows` rows as they come through the ring, 2^shift a stage, into sums(): [row][warp]. x is in shared memory.
  // A lane reads 8 elements of a row at once, as the tensor cores want them of two rows: in their upper row are elements 0, 1, 4 and 5, in
  // their lower one the others, and even columns have the x of the upper ones, odd columns of the lower ones. Lanes of odd rows take
  // neighbouring groups of 32 elements in the opposite order, so that rows, which lie multiples of 128 bytes apart, are read from
  // different banks; columns 2, 3, 6 and 7 have x in that order. So all of a row's sum is with lane `odd` of its four.
  template <int kGroups>
  __device__ __forceinline__ void multiply(int rows, int shift) {
    constexpr int kTogether = kGroups < 2 ? 1 : 2, kChunks = kGroups / kTogether;
    const int row = lane / 4, odd = row % 2, first_unit = warp * kGroups * 4 + lane % 4;
    uint64_t x[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int unit = first_unit + 4 * (kGroups > 1 ? j ^ (row / 2 % 2) : j);
      const uint32_t* words = reinterpret_cast<const uint32_t*>(&shared.x[unit]) + odd;
      x[j] = two_words(words[0], words[2]);
    }
    const uint32_t row_bytes = kGroups * 2 * threads, row_at = row * row_bytes, swap = kGroups > 1 ? 64 * odd : 0;
    const uint32_t lane_at = ring + 16 * first_unit + swap;  // of even groups; 2 swap less of odd ones
    float* to = sums() + row * kStepSumStride + warp;
#pragma unroll 1
    for (int first = 0; first < rows; first += kStepTileRows, to += kStepTileRows * kStepSumStride) {
      const int tile = min(rows - first, kStepTileRows), stages = (tile + (1 << shift) - 1) >> shift;
      await_stages(stages);
      uint32_t from[2];  // row, and the eighth after it
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // stages are full of rows, so the rows of several lie one after the other
        const uint32_t in_ring = at + min(row_at + i * 8 * row_bytes, (tile - 1) * row_bytes);
        from[i] = lane_at + min(in_ring, in_ring - ring_bytes);  // beyond its end: from its beginning
      }
      uint4 a[2][2][kTogether];  // what comes is a chunk ahead of what is multiplied
      float d[2][4] = {};
#pragma unroll
      for (int chunk = 0; chunk <= kChunks; ++chunk) {
#pragma unroll
        for (int i = 0; chunk < kChunks && i < 2 * kTogether; ++i)
          a[chunk % 2][i % 2][i / 2] = load_shared_16(from[i % 2] - (i / 2 == 0 ? 0 : 2 * swap) + 64 * (chunk * kTogether + i / 2));
        if (chunk == kChunks - 1) release_stages(stages);
#pragma unroll
        for (int i = 0; chunk > 0 && i < 2 * kTogether; ++i)
          mma_16x8x16(d[i % 2], a[(chunk - 1) % 2][i % 2][i / 2], x[(chunk - 1) * kTogether + i / 2]);
      }
      if (lane % 4 == odd) to[0] = d[0][0] + d[0][3], to[8 * kStepSumStride] = d[1][0] + d[1][3];
    }
  }
  // Of a row, from all warps.
  __device__ __forceinline__ float row_sum(int row) const {
    const auto* parts = reinterpret_cast<const float4*>(sums() + row * kStepSumStride);
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kStepMostWarps / 4; ++i) {
      const float4 v = parts[i];
      const int there = i < kStepFewestWarps / 4 ? 4 : threads / 32 - 4 * i;  // the others have been left from before
      all.x += there > 0 ? v.x : 0, all.y += there > 1 ? v.y : 0, all.z += there > 2 ? v.z : 0, all.w += there > 3 ? v.w : 0;
    }
    return (all.x + all.y) + (all.z + all.w);
  }

  // Element `of` of what a block's share needs, from its place in memory's words.
  template <typename T>
  __device__ __forceinline__ T companion(int source, const T* memory, int of, int in_share) const {
    const char* part = shared.slots[slot.slot].companions + source * StepSlot::kPart;
    const auto odd = reinterpret_cast<uintptr_t>(memory + (of - in_share)) % 16;
    return *reinterpret_cast<const T*>(part + odd + in_share * sizeof(T));
  }
  // What an output needs beside its sums; taken before they are there.
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
    const bf16 rounded = from_float<bf16>(value), rounded_gate = from_float<bf16>(gate);  // as the layers leave them to each other
    const ShortConv& c = step.arguments.linear.conv;
    const auto tap = [&e](int i) { return to_float(e.taps[i]); };
    const float x = to_float(rounded), z = fmaf(tap(2), x, fmaf(tap(1), e.old.y, fmaf(tap(0), e.old.x, to_float(e.taps_bias))));
    send(step, c.y, out, (c.silu ? z * sigmoid(z) : z) * to_float(rounded_gate));
    if ((step.stores & 2) != 0) static_cast<bf16*>(p.y)[out] = rounded, static_cast<bf16*>(p.y)[out + p.out / 2] = rounded_gate;
    reinterpret_cast<float2*>(c.state)[slot_of(c.slot) * c.channels + out] = make_float2(e.old.y, x);
  }

  // The warp's part of x to its place in shared memory: four elements a lane, or twice four.
  __device__ __forceinline__ void take_x(const StepInstruction& step) const {
    const int count = 32 * step.groups, first = warp * count + 4 * lane, second = count > 128 ? first + 128 : first;
    if (4 * lane < count) {
      uint2 a, b;
      if (step.in[0] != nullptr) {
        uint4 v, w;
        do v = peek4(step.in[0] + first), w = count > 128 ? peek4(step.in[0] + second) : v;
        while (!is_here(v, tag) || !is_here(w, tag));
        a = elements(v), b = elements(w);
      } else {
        const void* x = step.arguments.linear.linear.x;
        a = receive4(nullptr, x, first, tag), b = receive4(nullptr, x, second, tag);
      }
      reinterpret_cast<uint2*>(shared.x)[first / 4] = a, reinterpret_cast<uint2*>(shared.x)[second / 4] = b;
    }
    __syncwarp();
  }
  __device__ __forceinline__ void multiply(int groups, int rows, int shift) {
    switch (groups) {
      case 1: return multiply<1>(rows, shift);
      case 2: return multiply<2>(rows, shift);
      case 4: return multiply<4>(rows, shift);
      default: return multiply<8>(rows, shift);
    }
  }
  __device__ __forceinline__ void apply_linear(const StepInstruction& step) {
    const bool pairs = step.kind != StepKind::linear;
    const BlockShare share(step.share);
    const int shift = step.stage_shift, half = (1 << shift) / 2, most = pairs ? kStepRows / 2 : kStepRows;  // outputs whose sums fit
#pragma unroll 1
    for (int first = 0; first < share.count; first += most) {
      const int count = min(share.count - first, most);
      Extras extras;
      if (thread < count) extras = extras_of(step, share.first + first + thread, first + thread);
      if (first == 0 && !step.x_is_shared) take_x(step);
      // A stage of pairs holds the outputs' rows and then their gates'; the last one may hold fewer, in the same places.
      multiply(step.groups, pairs ? (count + half - 1) >> (shift - 1) << shift : count, shift);
      compute_barrier();
      if (thread < count) {
        const int row = pairs ? (thread & ~(half - 1)) * 2 + (thread & (half - 1)) : thread;
        finish(step, share.first + first + thread, row_sum(row), pairs ? row_sum(row + half) : 0.0F, extras);
      }
      sums_half ^= 1;
    }
  }

  __device__ __forceinline__ static int64_t slot_of(const int64_t* slot) { return slot != nullptr ? *slot : 0; }

  // A block's share of a Taylor state: kStepColumns of a head.
  struct TaylorShare {
    int features, slices, item, head, slice, column;
    int64_t state, stride;  // of the head; of a thread's vectors
    __device__ __forceinline__ TaylorShare(const StepInstruction& step, int threads, int thread) {
      const TaylorAttention& p = step.arguments.taylor;
      features = static_cast<int>(packed_features(p.feature_dim)), slices = p.head_dim / kStepColumns;
      item = BlockShare(step.share).place, head = item / slices, slice = item % slices;
      column = slice * kStepColumns + thread % 4 * 4, state = slot_of(p.slot) * p.heads + head;
      stride = int64_t{threads} / 16 * p.head_dim;
    }
    __device__ __forceinline__ bool any(const TaylorAttention& p) const { return item < p.heads * slices; }
    __device__ __forceinline__ float4* vectors(const TaylorAttention& p, int thread) const {
      return reinterpret_cast<float4*>(p.kv_state + (state * features + thread / 4) * p.head_dim + column);
    }
  };

  __device__ void prefetch_taylor(const StepInstruction& step) {
    const TaylorAttention& p = step.arguments.taylor;
    const TaylorShare share(step, threads, thread);
    if (!share.any(p)) return;
    if (thread < share.features) seen_sum = __ldcg(p.k_state + share.state * share.features + thread);
#pragma unroll
    for (int i = 0; i < kStepHeld; ++i)
      if (thread / 4 + i * (threads / 4) < share.features) seen[i] = __ldcs(share.vectors(p, thread) + i * share.stride);
  }

  __device__ void apply_taylor(const StepInstruction& step) {
    const TaylorAttention& p = step.arguments.taylor;
    const TaylorShare share(step, threads, thread);
    if (!share.any(p)) return;
    const int features = share.features, head = share.head;
    float4 held[kStepHeld];
#pragma unroll
    for (int i = 0; i < kStepHeld; ++i) held[i] = seen[i];
    const FeaturePair pair(min(thread, features - 1), p.feature_dim);
    float part = 0;
    if (thread < features) {
      const int first = head * p.feature_dim, i = first + max(pair.i, 0), j = first + max(pair.j, 0);
      const auto scaled = [&](int which, const void* memory, int at) {
        return rounded_product(from_float<bf16>(receive(step.in[which], memory, at, tag)), p.scale);
      };
      const float a = pair.of(scaled(0, p.q, i), scaled(0, p.q, j)), b = pair.of(scaled(1, p.k, i), scaled(1, p.k, j)),
                  updated = seen_sum + b;
      shared.features[0][thread] = a, shared.features[1][thread] = b;
      part = a * updated;
      if (share.slice == 0)
        late = __float_as_uint(updated), late_to = reinterpret_cast<uint32_t*>(p.k_state + share.state * features + thread);
    }
    const uint2 raw = receive4(step.in[2], p.v, head * p.head_dim + share.column, tag);
    const float denominator = sum_over_threads(part);
    const float v[4] = {low_float(raw.x), high_float(raw.x), low_float(raw.y), high_float(raw.y)};
    float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kStepHeld; ++i) {
      const int f = thread / 4 + i * (threads / 4);
      if (f >= features) continue;
      const float a = shared.features[0][f], b = shared.features[1][f];
      held[i].x = fmaf(b, v[0], held[i].x), held[i].y = fmaf(b, v[1], held[i].y);
      held[i].z = fmaf(b, v[2], held[i].z), held[i].w = fmaf(b, v[3], held[i].w);
      y.x = fmaf(a, held[i].x, y.x), y.y = fmaf(a, held[i].y, y.y), y.z = fmaf(a, held[i].z, y.z), y.w = fmaf(a, held[i].w, y.w);
      __stcs(share.vectors(p, thread) + i * share.stride, held[i]);
    }
#pragma unroll
    for (int d = 16; d >= 4; d /= 2) {
      y.x += __shfl_xor_sync(~0U, y.x, d), y.y += __shfl_xor_sync(~0U, y.y, d);
      y.z += __shfl_xor_sync(~0U, y.z, d), y.w += __shfl_xor_sync(~0U, y.w, d);
    }
    if (lane < 4) reinterpret_cast<float4*>(shared.sums)[warp * 4 + lane] = y;
    compute_barrier();
    if (thread >= kStepColumns) return;
    float all = 0;
#pragma unroll 4
    for (int w = 0; w < threads / 32; ++w) all += shared.sums[w * kStepColumns + thread];
    send(step, p.y, head * p.head_dim + share.slice * kStepColumns + thread, all / denominator);
  }
  // A block's head of a window layer.
  struct WindowShare {
    int head, units, key, unit;
    int64_t slot, stride;
    bf16 *k_ring, *v_ring;
    __device__ __forceinline__ WindowShare(const StepInstruction& step, int thread) {
      const CausalAttentionStep& p = step.arguments.window;
      head = BlockShare(step.share).place, units = p.head_dim / 8, key = thread / units, unit = thread % units;
      slot = slot_of(p.slot), stride = int64_t{p.heads} * p.head_dim;
      const int64_t first = slot * p.capacity * stride + head * p.head_dim;
      k_ring = static_cast<bf16*>(p.k_ring) + first, v_ring = static_cast<bf16*>(p.v_ring) + first;
    }
  };

  __device__ void prefetch_window(const StepInstruction& step) {
    const CausalAttentionStep& p = step.arguments.window;
    const WindowShare share(step, thread);
    if (share.head >= p.heads) return;
    if (share.key < p.capacity) {
      const int64_t at = share.key * share.stride + share.unit * 8;
      seen[0] = __ldcg(reinterpret_cast<const float4*>(share.k_ring + at)),
      seen[1] = __ldcg(reinterpret_cast<const float4*>(share.v_ring + at));
    }
    const int64_t written = __ldcg(p.position);
    if (thread == 0) shared.position = written;
    if (thread < p.head_dim / 2) shared.turns[thread] = rotary_turn(written, rotary_frequency(thread, p.head_dim, p.rotary_base));
  }

  __device__ void apply_window(const StepInstruction& step) {
    const CausalAttentionStep& p = step.arguments.window;
    const WindowShare share(step, thread);
    const int head = share.head, units = share.units, key = share.key, unit = share.unit, capacity = static_cast<int>(p.capacity);
    if (head >= p.heads) return;
    const int64_t written = shared.position, stride = share.stride;
    const int newest = static_cast<int>(written % capacity), count = static_cast<int>(min(written + 1, p.capacity));
    bf16 *k_ring = share.k_ring, *v_ring = share.v_ring;
    compute_barrier();  // sums are finished
    float *query = reinterpret_cast<float*>(shared.x), *own = query + 128, *scores = own + 128, *parts = shared.sums + 4 * kStepMostThreads;
    auto* values = reinterpret_cast<uint4*>(shared.sums);
    const uint4 keys = as_uint4(seen[0]);
    if (key < capacity && key != newest) values[thread] = as_uint4(seen[1]);
    const int at = head * p.head_dim;
    if (thread < 2 * units) {
      const uint2 v = receive4(step.in[2], p.v, at + 4 * thread, tag);
      reinterpret_cast<uint2*>(values + newest * units)[thread] = v;
      reinterpret_cast<uint2*>(v_ring + newest * stride)[thread] = v;
    }
    if (thread < p.head_dim / 2) {
      const int other = thread + p.head_dim / 2;
      const float2 t = shared.turns[thread];
      const float a = receive(step.in[0], p.q, at + thread, tag), b = receive(step.in[0], p.q, at + other, tag),
                  c = receive(step.in[1], p.k, at + thread, tag), d = receive(step.in[1], p.k, at + other, tag);
      query[thread] = to_float(from_float<bf16>(a * t.x - b * t.y)), query[other] = to_float(from_float<bf16>(a * t.y + b * t.x));
      const bf16 low = from_float<bf16>(c * t.x - d * t.y), high = from_float<bf16>(c * t.y + d * t.x);
      own[thread] = to_float(low), own[other] = to_float(high);
      k_ring[newest * stride + thread] = low, k_ring[newest * stride + other] = high;
    }
    compute_barrier();
    if (key < capacity) {
      float k[8], s = 0;
      unpack8(keys, k);
#pragma unroll
      for (int i = 0; i < 8; ++i) s = fmaf(query[unit * 8 + i], key == newest ? own[unit * 8 + i] : k[i], s);
      parts[thread] = s;
    }
    compute_barrier();
    if (thread < capacity) {
      float s = 0;
#pragma unroll 2
      for (int i = 0; i < units; ++i) s += parts[thread * units + i];
      scores[thread] = thread < count ? s * p.scale * 1.44269504088896341F : -INFINITY;
    }
    compute_barrier();
    if (thread < p.head_dim)
      send(step, p.y, at + thread, weighted(scores, reinterpret_cast<const bf16*>(values) + thread, count, p.head_dim));
  }
  // An element of the values' sum, weighted by the softmax of the scores.
  __device__ __forceinline__ static float weighted(const float* scores, const bf16* values, int count, int stride) {
    float top = -INFINITY, total = 0, sum = 0;
#pragma unroll 4
    for (int i = 0; i < count; ++i) top = fmaxf(top, scores[i]);
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float weight = exp2f(scores[i] - top);
      total += weight;
      sum = fmaf(weight, to_float(values[i * stride]), sum);
    }
    return sum / total;
  }

  __device__ __forceinline__ void run(const StepInstruction& step) {
    switch (step.kind) {
      case StepKind::norm: return normalise(step);
      case StepKind::linear:
      case StepKind::swiglu:
      case StepKind::conv: return apply_linear(step);
      case StepKind::taylor: return apply_taylor(step);
      case StepKind::window: return apply_window(step);
      case StepKind::prefetch_taylor: return prefetch_taylor(step);
      case StepKind::prefetch_window: return prefetch_window(step);
    }
  }
  __device__ __forceinline__ void run_all() {
    for (int i = 0; i < program.instruction_count; ++i) {
      barrier_wait(shared_address(&shared.slot_full[slot.slot]), slot.phase);
      const StepInstruction& step = shared.slots[slot.slot].step;
      run(step);
      compute_barrier();
      __syncwarp();
      for_warp(lane, 1, [&](int) { barrier_arrive(shared_address(&shared.slot_empty[slot.slot])); });
      slot.advance(kStepSlots);
    }
    if (thread != 0 || atomicAdd(program.counters + 1, 1) + 1 != gridDim.x) return;
    ++program.counters[0], program.counters[1] = 0;
  }
};
#endif

// kThreads: at most, the two warps that request included. With fewer, each has more registers.
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) run_step(const __grid_constant__ StepProgram program) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char memory[];
  StepShared& shared = *reinterpret_cast<StepShared*>(memory + program.stages * step_stage_bytes(program.threads));
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < program.stages)
    barrier_init(shared_address(&shared.full[thread])),
        barrier_init(shared_address(&shared.empty[thread]), program.threads / 32 * kWarpArrivals);
  if (thread < kStepSlots)
    barrier_init(shared_address(&shared.slot_full[thread])),
        barrier_init(shared_address(&shared.slot_empty[thread]), program.threads / 32 * kWarpArrivals);
  if (thread < kStepMostWarps) shared.warps[thread] = 0;
  fence_shared_proxy();
  __syncthreads();
  const int warp = thread / 32 - program.threads / 32;  // of those that request
  if (warp < 0) {
    Computer(program, shared, shared_address(memory)).run_all();
  } else if (thread % 32 == 0) {
    if (warp == 0) {
      request_weights(program, shared, shared_address(memory));
    } else {
      request_instructions(program, shared);
    }
  }
#else
  __trap();
#endif
}

}  // namespace

Status step_program(const StepProgram& planned, Stream stream) {
  StepProgram program = planned;
  const int threads = program.threads, limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (!runs_hopper_code() || threads > kStepMostThreads || threads % 32 != 0) return {"step program: no kernel for this device"};
  program.stages = std::min(kStepMostStages, (limit - static_cast<int>(sizeof(StepShared))) / step_stage_bytes(threads));
  if (program.stages < kStepTileStages) return {"step program: too little shared memory"};
  auto* run = threads <= 448 ? run_step<448 + 64> : run_step<kStepMostThreads + 64>;
  const int shared = program.stages * step_stage_bytes(threads) + static_cast<int>(sizeof(StepShared));
  if (const cudaError_t error = allow_shared_memory(run, shared); error != cudaSuccess) return status_of(error);
  void* arguments[] = {&program};
  return status_of(cudaLaunchCooperativeKernel(run, dim3(static_cast<unsigned>(multiprocessors())),
                                               dim3(static_cast<unsigned>(threads + 64)), arguments, static_cast<size_t>(shared),
                                               stream_of(stream)));
}

}  // namespace based::kernels::cuda
