// The kernel of a step program (see step_program.h). In each block one thread requests the block's rows of all weights, through a ring in
// shared memory, as early as the ring has room; another thread requests the instructions and their companions. The other warps compute,
// instruction by instruction, and receive the results of other blocks through mailboxes. Every sum has one owner and a fixed order. An
// instruction runs once in a few microseconds, so long code would miss the instruction cache: loops are hardly unrolled.
#include <algorithm>

#include "based/kernels/step/cuda/window.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The threads that compute. kInt8: whether the program has int8 weights; the code for them would take registers from other programs.
template <bool kInt8>
struct Computer : StepWindow {
  using StepWindow::StepWindow;

  __device__ __forceinline__ void run(const StepInstruction& step) {
    switch (step.kind) {
      case StepKind::norm: return normalise(step);
      case StepKind::linear:
      case StepKind::swiglu:
      case StepKind::conv: return apply_linear<kInt8>(step);
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
      compute_barrier();  // all computing threads have finished the instruction
      __syncwarp();
      for_warp(lane, 1, [&](int) { barrier_arrive(shared_address(&shared.slot_empty[slot.slot])); });
      slot.advance(kStepSlots);
    }
    if (thread != 0 || atomicAdd(program.counters + 1, 1) + 1 != gridDim.x) return;
    ++program.counters[0], program.counters[1] = 0;
  }
};
#endif

// kThreads: most threads, including the two requesting warps. Fewer threads leave more registers for each.
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
  __syncthreads();                                      // the barriers are initialised
  const int warp = thread / 32 - program.threads / 32;  // 0 and 1: the requesting warps; negative: a computing warp
  if (warp < 0) {
    Computer<kInt8>(program, shared, shared_address(memory)).run_all();
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
