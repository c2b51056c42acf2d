#include "based/generate/replay.h"

namespace based {
namespace {

class Plain final : public Replay {
 public:
  explicit Plain(std::function<void()> body) : body_(std::move(body)) {}
  void run() override { body_(); }

 private:
  std::function<void()> body_;
};

}  // namespace

Recorder& cuda_recorder() {
  static Recorder recorder = nullptr;
  return recorder;
}

std::unique_ptr<Replay> record(torch::Device device, std::function<void()> body) {
  if (device.is_cuda() && cuda_recorder() != nullptr) return cuda_recorder()(device, body);
  return std::make_unique<Plain>(std::move(body));
}

}  // namespace based
