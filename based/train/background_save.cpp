#include "based/train/background_save.h"

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <exception>
#include <utility>

#include "based/core/error.h"

namespace based {
namespace {

// New threads inherit the mask: a signal that asks the program to stop must not interrupt a write.
class StopSignalsBlocked {
 public:
  StopSignalsBlocked() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  StopSignalsBlocked(const StopSignalsBlocked&) = delete;
  StopSignalsBlocked& operator=(const StopSignalsBlocked&) = delete;
  ~StopSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

NamedTensors HostCopies::copy(const NamedTensors& tensors) {
  if (copies_.empty()) {
    std::vector<runtime::ToHost> allocated;  // if the memory does not suffice, the next call tries again
    for (const auto& [name, tensor] : tensors) allocated.emplace_back(tensor);
    copies_ = std::move(allocated);
  }
  BASED_ASSERT(copies_.size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) copies_[i].begin(tensors[i].second);
  NamedTensors host;
  for (size_t i = 0; i < tensors.size(); ++i) host.emplace_back(tensors[i].first, copies_[i].wait());
  return host;
}

void BackgroundSave::start(std::function<void()> write) {
  BASED_ASSERT(!save_.valid());
  const StopSignalsBlocked blocked;
  save_ = std::async(std::launch::async, [write = std::move(write)]() -> std::string {
    try {
      write();
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  });
}

bool BackgroundSave::running() const { return save_.valid() && save_.wait_for(std::chrono::seconds(0)) != std::future_status::ready; }

std::string BackgroundSave::wait() { return save_.valid() ? save_.get() : ""; }

}  // namespace based
