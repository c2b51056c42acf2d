// A captured step whose kernels may have been joined.
#pragma once
#include "based/kernels/step_program.h"
#include "bench/cuda/harness.cuh"

namespace based::bench {

class StepGraph {
 public:
  // `fuse`: fuse_step or fuse_norms, or null: its kernels as they are. What launchers do once must have been done.
  StepGraph(const std::function<void(kernels::Stream)>& launch, decltype(&kernels::cuda::fuse_step) fuse) {
    check(cudaStreamCreate(&stream_), "cudaStreamCreate");
    cudaGraph_t graph = nullptr;
    const kernels::cuda::StepLog log;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    launch({stream_});
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    launches_ = static_cast<int>(log.launches().size());
    if (fuse != nullptr) {
      done_ = fuse(graph, log, [this](int64_t bytes) {
        memory_.push_back(Buffer(bytes));
        return memory_.back().as();
      });
      check(done_.status);
    }
    check(cudaGraphInstantiate(&exec_, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  StepGraph(const StepGraph&) = delete;
  ~StepGraph() {
    cudaGraphExecDestroy(exec_);
    cudaStreamDestroy(stream_);
  }
  void launch() { check(cudaGraphLaunch(exec_, stream_), "cudaGraphLaunch"); }
  void wait() { check(cudaStreamSynchronize(stream_), "a step's graph"); }
  void run() { launch(), wait(); }
  cudaStream_t stream() const { return stream_; }
  const kernels::cuda::StepFusion& done() const { return done_; }
  int launches() const { return launches_; }  // before any were joined

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  std::vector<Buffer> memory_;
  kernels::cuda::StepFusion done_;
  int launches_ = 0;
};

}  // namespace based::bench
