#include "based/runtime/replay.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <mutex>

#include "based/core/error.h"

namespace based::runtime {
namespace {

// The thread's own stream, where it has one. No other thread launches on it or uses cuBLAS' workspace of that stream, which the recorded
// kernels keep using. The default stream cannot be recorded.
c10::cuda::CUDAStream stream_to_record_on(torch::Device device) {
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device.index());
  return current == c10::cuda::getDefaultCUDAStream(device.index()) ? c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())
                                                                    : current;
}

constexpr int kWarmUps = 3;  // runs before the recording, in which cuBLAS and the allocator reserve their memory

// A recording allocates memory of its own and does not use the allocator's cache, which keeps the memory of the warm-ups: a step that needs
// half of the device would not find another half. So the cache is emptied where the free memory may not be enough.
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
    static std::mutex one_at_a_time;  // the generator and the allocator track captures once per process
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
    stream.synchronize();  // other streams use memory that was filled on this one
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
  // The memory pool of another recording; without one, the id that lets the graph create its own.
  static at::cuda::MempoolId_t pool_of(Replay* other) {
    auto* graph = dynamic_cast<Graph*>(other);
    return graph != nullptr ? graph->graph_.pool() : at::cuda::MempoolId_t{0, 0};
  }

  // Ends the capture. Otherwise the stream would continue to capture and the device would refuse other work.
  void break_off(const c10::cuda::CUDAStream& stream) {
    try {
      return graph_.capture_end();
    } catch (const c10::Error&) {  // the capture is not a valid graph
    }
    cudaGraph_t unfinished = nullptr;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone)
      cudaStreamEndCapture(stream, &unfinished);
    if (unfinished != nullptr) cudaGraphDestroy(unfinished);
    cudaGetLastError();  // clears the error of the interrupted capture
  }

  torch::Device device_;
  at::cuda::CUDAGraph graph_{/*keep_graph=*/true};
};

std::unique_ptr<Replay> record_graph(torch::Device device, const std::function<void()>& body, const RecordOptions& options) {
  return std::make_unique<Graph>(device, body, options);
}
[[maybe_unused]] const Recorder kRecorder = recorder_of(torch::kCUDA) = record_graph;

}  // namespace

}  // namespace based::runtime
