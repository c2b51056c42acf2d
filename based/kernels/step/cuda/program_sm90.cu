// The kernel of a step program (see step_program.h). In each block one thread requests the block's rows of all weights, through a ring in
// shared memory, as early as the ring has room; another thread requests the instructions and their companions. The other warps compute,
// instruction by instruction, and receive the results of other blocks through mailboxes. Every sum has one owner and a fixed order. An
// instruction runs once in a few microseconds, so long code would miss the instruction cache: loops are hardly unrolled.
#include <algorithm>

#include "based/kernels/step/cuda/linear.cuh"
#include "based/kernels/step/cuda/taylor.cuh"
#include "based/kernels/step/cuda/window.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

// kThreads: most threads, including the two requesting warps. Fewer threads leave more registers for each. kInt8: whether the program has
// int8 weights; the code for them would take registers from other programs.
template <int kThreads, bool kInt8>
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
  __syncthreads();  // the barriers are initialised

  // Two producers, one thread of each of the last warps: one requests the weights, the other the instructions.
  const int producer = thread / 32 - program.threads / 32;  // negative: a consumer
  if (producer >= 0) {
    if (thread % 32 != 0) return;
    if (producer == 0) {
      request_weights(program, shared, shared_address(memory));
    } else {
      request_instructions(program, shared);
    }
    return;
  }

  // The consumers compute, instruction by instruction.
  StepThread t(program, shared, shared_address(memory));
  for (int i = 0; i < program.instruction_count; ++i) {
    barrier_wait(shared_address(&shared.slot_full[t.slot.slot]), t.slot.phase);
    const StepInstruction& step = shared.slots[t.slot.slot].step;
    switch (step.kind) {
      case StepKind::norm: step_norm(t, step); break;
      case StepKind::linear:
      case StepKind::swiglu:
      case StepKind::conv: step_linear<kInt8>(t, step); break;
      case StepKind::taylor: step_taylor(t, step); break;
      case StepKind::window: step_window(t, step); break;
      case StepKind::prefetch_taylor: prefetch_taylor(t, step); break;
      case StepKind::prefetch_window: prefetch_window(t, step); break;
    }
    t.compute_barrier();  // all computing threads have finished the instruction
    __syncwarp();
    for_warp(t.lane, 1, [&](int) { barrier_arrive(shared_address(&shared.slot_empty[t.slot.slot])); });
    t.slot.advance(kStepSlots);
  }
  // The last block to end advances the launch number for the next launch.
  if (thread != 0 || atomicAdd(program.counters + 1, 1) + 1 != gridDim.x) return;
  ++program.counters[0], program.counters[1] = 0;
#else
  __trap();
#endif
}

}  // namespace

Status step_program(const StepProgram& planned, Queue queue) {
  StepProgram program = planned;
  const int threads = program.threads, limit = block_shared_memory();
  if (!runs_hopper_code() || threads > kStepMostThreads || threads % 32 != 0) return {"step program: no kernel for this device"};
  const int fixed = static_cast<int>(sizeof(StepShared)) + (program.has_int8 ? threads / 32 * kStepDigitBytes : 0);
  program.stages = std::min(kStepMostStages, (limit - fixed) / step_stage_bytes(threads));
  if (program.stages < kStepTileStages) return {"step program: too little shared memory"};
  constexpr int kFew = 448 + 64, kMost = kStepMostThreads + 64;
  auto* run = threads <= 448 ? (program.has_int8 ? run_step<kFew, true> : run_step<kFew, false>)
                             : (program.has_int8 ? run_step<kMost, true> : run_step<kMost, false>);
  const int shared = program.stages * step_stage_bytes(threads) + fixed;
  if (const cudaError_t error = allow_shared_memory(run, shared); error != cudaSuccess) return status_of(error);
  void* arguments[] = {&program};
  return status_of(cudaLaunchCooperativeKernel(run, dim3(static_cast<unsigned>(multiprocessors())),
                                               dim3(static_cast<unsigned>(threads + 64)), arguments, static_cast<size_t>(shared),
                                               stream_of(queue)));
}

namespace {
const DefineLaunchers<StepProgramLaunchers> kLaunchers(Device::cuda, {.run = step_program});
}

}  // namespace based::kernels::cuda
