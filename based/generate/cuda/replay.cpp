#include "based/generate/replay.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include "based/core/error.h"
#include "based/kernels/step_program.h"

namespace based {
namespace {

constexpr int kWarmUps = 3;  // cuBLAS and the allocator settle before anything is recorded

class Graph final : public Replay {
 public:
  Graph(torch::Device device, const std::function<void()>& body, Recording recording) : device_(device) {
    const c10::cuda::CUDAGuard on_device(device);
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
    stream.synchronize();
    c10::cuda::getCurrentCUDAStream().synchronize();
    const c10::cuda::CUDAStreamGuard on_stream(stream);
    for (int i = 0; i < kWarmUps; ++i) body();
    stream.synchronize();
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    const kernels::cuda::StepLog log;
    try {
      body();
      graph_.capture_end();
    } catch (const c10::Error& error) {
      break_off(stream);
      throw Error(std::string("this step cannot be recorded as a CUDA graph: ") + error.what_without_backtrace());
    }
    if (recording == Recording::fused) fuse(log);
    try {
      graph_.instantiate();
    } catch (const c10::Error& error) {
      throw Error(std::string("this step's graph cannot be made ready: ") + error.what_without_backtrace());
    }
  }
  void run() override {
    const c10::cuda::CUDAGuard on_device(device_);
    graph_.replay();
  }

 private:
  // Kernels of one text's step become one, and norms of several texts' go, where they can.
  void fuse(const kernels::cuda::StepLog& log) {
    const auto allocate = [this](int64_t bytes) {
      programs_.push_back(torch::empty({bytes}, torch::dtype(torch::kByte).device(device_)));
      return programs_.back().mutable_data_ptr();
    };
    kernels::cuda::StepFusion done = kernels::cuda::fuse_step(graph_.raw_cuda_graph(), log, allocate);
    if (done.status.ok() && done.kernels == 0) done = kernels::cuda::fuse_norms(graph_.raw_cuda_graph(), log, allocate);
    if (!done.status.ok()) throw Error(std::string("this step's kernels cannot be joined: ") + done.status.what);
  }
  // Without it the stream would go on capturing, and the device refuse whatever else is asked of it.
  void break_off(const c10::cuda::CUDAStream& stream) {
    try {
      return graph_.capture_end();
    } catch (const c10::Error&) {  // what was recorded is no graph
    }
    cudaGraph_t unfinished = nullptr;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone)
      cudaStreamEndCapture(stream, &unfinished);
    if (unfinished != nullptr) cudaGraphDestroy(unfinished);
    cudaGetLastError();  // of a capture that was broken off
  }

  torch::Device device_;
  std::vector<torch::Tensor> programs_;  // memory of kernels that are whole steps
  at::cuda::CUDAGraph graph_{/*keep_graph=*/true};
};

[[maybe_unused]] const bool registered = [] {
  recorder_of(torch::kCUDA) = [](torch::Device device, const std::function<void()>& body, Recording recording) -> std::unique_ptr<Replay> {
    return std::make_unique<Graph>(device, body, recording);
  };
  return true;
}();

}  // namespace
}  // namespace based
