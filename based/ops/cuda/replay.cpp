#include "based/ops/replay.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <mutex>

#include "based/core/error.h"

namespace based::ops {
namespace {

// A thread's own stream, where it has one: nobody else launches there, and cuBLAS' workspace of that stream, which what is recorded goes on
// using, is nobody else's. The default stream cannot be recorded.
c10::cuda::CUDAStream stream_to_record_on(torch::Device device) {
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device.index());
  return current == c10::cuda::getDefaultCUDAStream(device.index()) ? c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())
                                                                    : current;
}

constexpr int kWarmUps = 3;  // cuBLAS and the allocator settle before anything is recorded

// A recording takes memory of its own, and not what the warm-ups have left in the allocator's cache: a step that takes half of the device
// would find no other half. That is given back where what is free may not do.
void make_room(c10::DeviceIndex device) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  const auto allocated = allocator::getDeviceStats(device).allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (static_cast<int64_t>(free) < allocated.peak - allocated.current) allocator::emptyCache();
}

class Graph final : public Replay {
 public:
  Graph(torch::Device device, const std::function<void()>& body, const RecordOptions& options) : device_(device) {
    static std::mutex one_at_a_time;  // the generator's and the allocator's records of captures are the process'
    const std::lock_guard lock(one_at_a_time);
    const c10::cuda::CUDAGuard on_device(device);
    const c10::cuda::CUDAStream stream = stream_to_record_on(device);
    stream.synchronize();
    c10::cuda::getCurrentCUDAStream().synchronize();
    const c10::cuda::CUDAStreamGuard on_stream(stream);
    for (int i = 0; i < kWarmUps; ++i) body();
    stream.synchronize();
    make_room(stream.device_index());
    graph_.capture_begin(pool_of(options.memory_of), cudaStreamCaptureModeThreadLocal);
    try {
      body();
      graph_.capture_end();
    } catch (const c10::Error& error) {
      break_off(stream);
      throw Error(std::string("this step cannot be recorded as a CUDA graph: ") + error.what_without_backtrace());
    } catch (...) {
      break_off(stream);
      throw;
    }
    if (options.rewrite) options.rewrite(graph_.raw_cuda_graph());
    stream.synchronize();  // memory that was filled there is used on other streams
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
  // The pool of another recording, or none: then the graph makes one.
  static at::cuda::MempoolId_t pool_of(Replay* other) {
    auto* graph = dynamic_cast<Graph*>(other);
    return graph != nullptr ? graph->graph_.pool() : at::cuda::MempoolId_t{0, 0};
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
  at::cuda::CUDAGraph graph_{/*keep_graph=*/true};
};

}  // namespace

Recorder cuda_recorder() {
  return [](torch::Device device, const std::function<void()>& body, const RecordOptions& options) -> std::unique_ptr<Replay> {
    return std::make_unique<Graph>(device, body, options);
  };
}

}  // namespace based::ops
