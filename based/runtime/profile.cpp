#include "based/runtime/profile.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace based::runtime {
namespace {

constexpr size_t kMostPending = 8192;  // ranges whose end a GPU has not reached; further ones get no GPU time
constexpr std::chrono::seconds kReferenceAge{1};

std::atomic<int> gpu_time_pauses{0};

c10::Event recorded_event(torch::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

ProfileClock::duration between(const c10::Event& begin, const c10::Event& end) {
  return std::chrono::duration_cast<ProfileClock::duration>(std::chrono::duration<double, std::milli>(begin.elapsedTime(end)));
}

}  // namespace

// A point of a GPU's stream whose time on the host's clock is known. Times between events are floats, so a reference is used for a second
// only; the next one's time is computed from it.
struct GpuReference {
  c10::Event event;
  ProfileClock::time_point made;
  std::optional<ProfileClock::time_point> time = {};  // set when the event is known to have completed
  std::shared_ptr<GpuReference> before = {};          // null if `time` is set

  ProfileClock::time_point resolved() {
    if (!time) time = before->resolved() + between(before->event, event);
    before.reset();
    return *time;
  }
};

struct DeviceRange::Timer {
  ProfileEvent event;
  torch::Device device;
  std::shared_ptr<GpuReference> reference;
  c10::Event begin;
  std::optional<c10::Event> end = {};
};

namespace {

// Turns pairs of events of GPUs into events of the profile.
template <class Timer>
class GpuTimes {
 public:
  std::shared_ptr<Timer> begin(torch::Device device, ProfileEvent event) {
    const std::lock_guard lock(mutex_);
    profile_hooks().flush = [] { GpuTimes::all().flush(); };
    if (pending_.size() >= kMostPending) return nullptr;
    std::shared_ptr<GpuReference>& reference = references_[device.index()];
    const auto now = ProfileClock::now();
    if (!reference) {
      reference = std::make_shared<GpuReference>(GpuReference{recorded_event(device), now});
      reference->event.synchronize();
      reference->time = ProfileClock::now();
    } else if (now - reference->made > kReferenceAge) {
      reference = std::make_shared<GpuReference>(GpuReference{recorded_event(device), now, {}, reference});
    }
    return std::make_shared<Timer>(Timer{event, device, reference, recorded_event(device)});
  }

  void end(std::shared_ptr<Timer> timer) {
    const std::lock_guard lock(mutex_);
    timer->end = recorded_event(timer->device);
    pending_.push_back(std::move(timer));
    while (!pending_.empty() && pending_.front()->end->query()) take_first();
  }

  static GpuTimes& all() {
    static GpuTimes times;
    return times;
  }

 private:
  void flush() {
    const std::lock_guard lock(mutex_);
    try {
      while (!pending_.empty()) {
        pending_.front()->end->synchronize();
        take_first();
      }
    } catch (const c10::Error&) {  // the GPU has failed, which the command reports
      pending_.clear();
    }
    references_.clear();
  }

  void take_first() {
    const std::shared_ptr<Timer> timer = pending_.front();
    pending_.pop_front();
    ProfileEvent event = timer->event;
    event.begin = timer->reference->resolved() + between(timer->reference->event, timer->begin);
    event.end = event.begin + between(timer->begin, *timer->end);
    add_profile_event(timer->device.str() + " (GPU time)", event);
  }

  std::mutex mutex_;
  std::deque<std::shared_ptr<Timer>> pending_;
  std::map<c10::DeviceIndex, std::shared_ptr<GpuReference>> references_;
};

}  // namespace

void DeviceRange::begin(ProfileLevel level, const char* name, torch::Device device, const ProfileArguments& arguments) {
  if (gpu_time_pauses > 0) return;
  ProfileEvent event;
  event.level = level, event.name = name, event.arguments = arguments;
  timer_ = GpuTimes<Timer>::all().begin(device, event);
}

void DeviceRange::end() {
  try {
    GpuTimes<Timer>::all().end(std::move(timer_));
  } catch (const c10::Error&) {  // the GPU has failed, which the command reports
  }
}

GpuTimesPause::GpuTimesPause() { ++gpu_time_pauses; }
GpuTimesPause::~GpuTimesPause() { --gpu_time_pauses; }

namespace {

thread_local std::optional<DeviceRange> open_backward;  // the range of the backward pass that runs on this thread

void begin_backward_range(const char* name, torch::Device device, const ProfileArguments& arguments) {
  const bool first = !open_backward;
  open_backward.reset();
  if (!profiles(ProfileLevel::layers)) return;
  if (first && !device.is_cpu()) name_profile_thread("autograd");
  open_backward.emplace(ProfileLevel::layers, name, device, arguments);
  if (first) torch::autograd::Engine::get_default_engine().queue_callback([] { open_backward.reset(); });
}

}  // namespace

void add_backward_range(const torch::Tensor& output, const char* name, const ProfileArguments& arguments) {
  output.register_hook(
      [name, arguments, device = output.device()](const torch::Tensor& /*gradient*/) { begin_backward_range(name, device, arguments); });
}

}  // namespace based::runtime
