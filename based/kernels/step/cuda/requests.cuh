// The requests of a block of the step program: weights through a ring, instructions and their companions through slots, both before the
// computing threads need them.
#pragma once
#include "based/kernels/common/cuda/device.cuh"
#include "based/kernels/step/cuda/program.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace based::kernels::cuda::detail {

// Runs each(i) for i < count on behalf of a warp: lane i runs it, so that a barrier counts one arrival a warp. compute-sanitizer's
// racecheck tracks each thread separately, so in a build for it every lane runs all of them.
#ifdef BASED_RACECHECK
constexpr int kWarpArrivals = 32;
#else
constexpr int kWarpArrivals = 1;
#endif
template <typename F>
__device__ __forceinline__ void for_warp(int lane, int count, F&& each) {
  if constexpr (kWarpArrivals == 1) {
    if (lane < count) each(lane);
  } else {
    for (int i = 0; i < count; ++i) each(i);
  }
}

// The place in a ring `count` stages after `place`; count <= stages.
__device__ __forceinline__ RingPlace advanced(RingPlace place, int count, int stages) {
  const int to = place.slot + count;
  return to < stages ? RingPlace{to, place.phase} : RingPlace{to - stages, place.phase ^ 1};
}

// The share of this block: its index among the shares, and its outputs [first, first + count).
struct BlockShare {
  int index, first, count;
  __device__ __forceinline__ explicit BlockShare(const StepShare& share) {
    index = static_cast<int>(blockIdx.x) + share.turn;
    if (index >= static_cast<int>(gridDim.x)) index -= static_cast<int>(gridDim.x);
    first = index * share.each + min(index, share.extra), count = share.each + (index < share.extra ? 1 : 0);
  }
};

__device__ __forceinline__ void bulk_load_once(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
               : "memory");
}
// Requests all weights of the block, in order. Run by one thread.
template <class Shared>
__device__ __forceinline__ void request_weights(const StepProgram& program, Shared& shared, uint32_t ring) {
  const uint64_t policy = first_out_of_cache();
  const uint32_t stage_bytes = step_stage_bytes(program.threads);
  RingPlace at, oldest;  // oldest: the first stage in flight
  bool is_first_round = true;
  int in_flight = 0;  // stages
  StepFetch next = program.fetches[0];
  for (int i = 0; i < program.fetch_count; ++i) {
    const StepFetch fetch = next;
    if (i + 1 < program.fetch_count) next = program.fetches[i + 1];
    const BlockShare share(fetch.share);
    const bool pairs = fetch.to_gate != 0;
    const int step = step_stage_rows(program.threads, fetch.row_bytes) / (pairs ? 2 : 1);
    const char* from = fetch.weight + int64_t{share.first} * fetch.row_bytes;
    for (int remaining = share.count; remaining > 0; remaining -= step) {
      if (in_flight >= kStepBytesInFlight / static_cast<int>(stage_bytes)) {
        barrier_wait(shared_address(&shared.full[oldest.slot]), oldest.phase);
        oldest.advance(program.stages), --in_flight;
      }
      ++in_flight;
      if (!is_first_round) barrier_wait(shared_address(&shared.empty[at.slot]), at.phase ^ 1);
      const uint32_t bytes = min(remaining, step) * fetch.row_bytes, full = shared_address(&shared.full[at.slot]),
                     to = ring + at.slot * stage_bytes;
      barrier_expect(full, pairs ? 2 * bytes : bytes);
      bulk_load_once(to, from, bytes, full, policy);
      if (pairs) bulk_load_once(to + step * fetch.row_bytes, from + fetch.to_gate, bytes, full, policy);
      from += bytes;
      at.advance(program.stages);
      if (at.slot == 0) is_first_round = false;
    }
  }
}

// The part of an instruction's companions that a lane requests: source number `lane`.
struct CompanionRequest {
  const char* source;
  int32_t each;
  bool whole;
  int64_t from_slot;  // bytes
  StepShare share;
  __device__ __forceinline__ CompanionRequest(const StepCompanions& of, int lane) : share(of.share) {
    const bool any = lane < kStepSources;
    source = any ? of.source[lane] : nullptr, each = any ? of.each[lane] : 0, whole = of.whole;
    from_slot = lane == kStepState && of.slot != nullptr ? *of.slot * of.slot_bytes : 0;
  }
};

// Requests all instructions and their companions, in order. Run by one warp. Uses TMA, since ordinary loads would delay the other threads'
// reads of the mailboxes.
template <class Shared>
__device__ __forceinline__ void request_instructions(const StepProgram& program, Shared& shared) {
  static_assert(kStepSources <= 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPlace at;
  bool is_first_round = true;
  CompanionRequest next(program.companions[0], lane);
  for (int i = 0; i < program.instruction_count; ++i) {
    const CompanionRequest request = next;
    if (i + 1 < program.instruction_count) next = CompanionRequest(program.companions[i + 1], lane);
    if (!is_first_round) barrier_wait(shared_address(&shared.slot_empty[at.slot]), at.phase ^ 1);
    const StepSlot& slot = shared.slots[at.slot];
    const uint32_t full = shared_address(&shared.slot_full[at.slot]);
    const char* from = request.source;
    uint32_t bytes = request.each;
    if (!request.whole && from != nullptr) {
      const BlockShare share(request.share);
      from += int64_t{share.first} * request.each + request.from_slot;
      const auto odd = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % 16);
      from -= odd, bytes = (odd + share.count * request.each + 15) / 16 * 16;
    }
    const uint32_t total = sizeof(StepInstruction) + __reduce_add_sync(~0U, bytes);
    if (lane == 0) {
      barrier_expect(full, total);
      bulk_load(shared_address(&slot.step), program.instructions + i, sizeof(StepInstruction), full);
    }
    __syncwarp();  // the barrier knows the number of bytes
    if (bytes > 0) bulk_load(shared_address(slot.companions) + lane * StepSlot::kPart, from, bytes, full);
    at.advance(kStepSlots);
    if (at.slot == 0) is_first_round = false;
  }
}

}  // namespace based::kernels::cuda::detail
#endif
