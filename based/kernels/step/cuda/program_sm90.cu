// The kernel of a step program (see step_program.h). In each block one thread requests the block's rows of all weights, through a ring in
// shared memory, as early as the ring has room; another thread requests the instructions and their companions. The other warps compute,
// instruction by instruction, and receive the results of other blocks through mailboxes. Every sum has one owner and a fixed order. An
// instruction runs once in a few microseconds, so long code would miss the instruction cache: loops are hardly unrolled.
#include <algorithm>

#include "based/kernels/step/cuda/linear_tokens.cuh"
#include "based/kernels/step/cuda/taylor_tokens.cuh"
#include "based/kernels/step/cuda/window_tokens.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
template <bool kInt8, class Tokens>
__device__ __forceinline__ void run_instruction(StepThread<Tokens>& t, const StepInstruction& step) {
  constexpr bool kOne = Tokens::kTokens == 1;
  switch (step.kind) {
    case StepKind::norm: step_norm(t, step); break;
    case StepKind::linear:
    case StepKind::swiglu:
    case StepKind::conv:
      if constexpr (kOne)
        step_linear<kInt8>(t, step);
      else
        step_linear_of_tokens(t, step);
      break;
    case StepKind::taylor:
      if constexpr (kOne)
        step_taylor(t, step);
      else
        step_taylor_of_tokens(t, step);
      break;
    case StepKind::window:
      if constexpr (kOne)
        step_window(t, step);
      else
        step_window_of_tokens(t, step);
      break;
    case StepKind::prefetch_taylor: prefetch_taylor(t, step); break;
    case StepKind::prefetch_window: prefetch_window(t, step); break;
  }
}
#endif

// Threads after those that compute, which request copies. Two warps leave 128 registers for each thread where there are up to 16 warps in
// all. With more warps a thread has 96, which is too few for several tokens. There a whole warpgroup requests copies and hands registers to
// the computing threads. A step of one token was 5 % slower with it.
constexpr int producer_threads(int threads, int tokens) { return tokens == 1 || threads + 64 <= 512 ? 64 : 128; }

// kThreads: most threads that compute. Fewer threads leave more registers for each. kInt8: whether the program has int8 weights; the code
// for them would take registers from other programs.
template <int kThreads, bool kInt8, class Tokens>
__global__ void __launch_bounds__(kThreads + producer_threads(kThreads, Tokens::kTokens), 1)
    run_step(const __grid_constant__ StepProgram program) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char memory[];
  constexpr bool kMoved = producer_threads(kThreads, Tokens::kTokens) == 128;
  using Shared = StepShared<Tokens::kTokens>;
  Shared& shared = *reinterpret_cast<Shared*>(memory + program.stages * step_stage_bytes(program.threads));
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < program.stages)
    barrier_init(shared_address(&shared.full[thread])),
        barrier_init(shared_address(&shared.empty[thread]), program.threads / 32 * kWarpArrivals);
  if (thread < kStepSlots)
    barrier_init(shared_address(&shared.slot_full[thread])),
        barrier_init(shared_address(&shared.slot_empty[thread]), program.threads / 32 * kWarpArrivals);
  if (thread < kStepMostWarps)
    for (int token = 0; token < Tokens::kTokens; ++token) shared.warps[token][thread] = 0;
  fence_shared_proxy();
  __syncthreads();  // the barriers are initialised

  // Two producers: one thread requests the weights, a warp requests the instructions.
  const int producer = thread / 32 - kThreads / 32;  // negative: a consumer
  if (producer >= 0) {
    if constexpr (kMoved) asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
    if (producer == 0 && thread % 32 == 0) request_weights(program, shared, shared_address(memory));
    if (producer == 1) request_instructions(program, shared);
    return;
  }
  if constexpr (kMoved) asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
  if (thread >= program.threads) return;

  // The consumers compute, instruction by instruction.
  StepThread<Tokens> t(program, shared, shared_address(memory));
  for (int i = 0; i < program.instruction_count; ++i) {
    barrier_wait(shared_address(&shared.slot_full[t.slot.slot]), t.slot.phase);
    run_instruction<kInt8>(t, shared.slots[t.slot.slot].step);
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

// The ring has as many stages as there is shared memory for.
template <bool kInt8, class Tokens>
Status launch(StepProgram program, Queue queue) {
  const int limit = block_shared_memory(), threads = program.threads, stage = step_stage_bytes(threads);
  const int fixed =
      static_cast<int>(sizeof(StepShared<Tokens::kTokens>)) + step_x_total(program) + (kInt8 ? threads / 32 * kStepDigitBytes : 0);
  program.stages = std::min(kStepMostStages, (limit - fixed) / stage);
  if (program.stages < kStepTileStages) return {"step program: too little shared memory"};
  constexpr int kFew = 448, kMost = kStepMostThreads;
  const int computing = threads <= kFew ? kFew : kMost;
  auto* run = threads <= kFew ? run_step<kFew, kInt8, Tokens> : run_step<kMost, kInt8, Tokens>;
  const int shared = program.stages * stage + fixed;
  if (const cudaError_t error = allow_shared_memory(run, shared); error != cudaSuccess) return status_of(error);
  void* arguments[] = {&program};
  return status_of(cudaLaunchCooperativeKernel(run, dim3(static_cast<unsigned>(multiprocessors())),
                                               dim3(static_cast<unsigned>(computing + producer_threads(computing, Tokens::kTokens))),
                                               arguments, static_cast<size_t>(shared), stream_of(queue)));
}

}  // namespace

Status step_program(const StepProgram& program, Queue queue) {
  if (!runs_hopper_code() || program.threads > kStepMostThreads || program.threads % 32 != 0)
    return {"step program: no kernel for this device"};
  if (program.tokens < 1 || program.tokens > kStepTokens || (program.tokens > 1 && program.has_int8))
    return {"step program: no kernel for so many tokens"};
  if (program.tokens == 1) return program.has_int8 ? launch<true, OneToken>(program, queue) : launch<false, OneToken>(program, queue);
  if (program.tokens == 2) return launch<false, Tokens<2, 2>>(program, queue);
  if (program.tokens <= 4) return launch<false, Tokens<4, 4>>(program, queue);
  const bool halves = program.width % 128 == 0 && program.width / 2 <= program.threads;
  return halves ? launch<false, Tokens<kStepTokens, 4>>(program, queue) : launch<false, Tokens<kStepTokens, 8>>(program, queue);
}

namespace {
const DefineLaunchers<StepProgramLaunchers> kLaunchers(Device::cuda, {.run = step_program});
}

}  // namespace based::kernels::cuda
