#include "based/runtime/replay.h"

#include <map>

#include "based/runtime/profile.h"

namespace based::runtime {
namespace {

class Plain final : public Replay {
 public:
  explicit Plain(std::function<void()> body) : body_(std::move(body)) {}
  void run() override { body_(); }

 private:
  std::function<void()> body_;
};

}  // namespace

Recorder& recorder_of(torch::DeviceType type) {
  static std::map<torch::DeviceType, Recorder> recorders;
  return recorders[type];
}

std::unique_ptr<Replay> record(torch::Device device, std::function<void()> body, const RecordOptions& options) {
  if (const Recorder recorder = recorder_of(device.type())) {
    const ProfileRange range(ProfileLevel::phases, "record");
    const GpuTimesPause pause;
    return recorder(device, body, options);
  }
  return std::make_unique<Plain>(std::move(body));
}

}  // namespace based::runtime
