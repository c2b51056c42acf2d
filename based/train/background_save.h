// Saving while training continues: the state is copied to host memory, and a thread writes the copy.
#pragma once
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "based/models/weights.h"
#include "based/runtime/transfer.h"

namespace based {

// Copies of tensors in host memory, pinned if the tensors are on a GPU. The memory is allocated by the first copy and reused.
class HostCopies {
 public:
  // Returns when the copies are complete. The names, shapes, types and devices must be those of the first call. The result is valid until
  // the next call.
  NamedTensors copy(const NamedTensors& tensors);

 private:
  std::vector<runtime::ToHost> copies_;
};

// Runs one save at a time on a thread of its own.
class BackgroundSave {
 public:
  BackgroundSave() = default;
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;
  ~BackgroundSave() { wait(); }

  // An exception of `write` is its failure. Signals that ask the program to stop are delivered to other threads. wait() must have been
  // called for the save before.
  void start(std::function<void()> write);
  bool running() const;
  // Waits for the save to end. Returns why it failed; "" if it succeeded, or if none was started since the last call.
  std::string wait();

 private:
  std::future<std::string> save_;
};

}  // namespace based
