// The processes of other ranks on the same host. Ranks that a launcher of others has started are not children of each other, so their ends
// are read from pidfds.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace based {

class SiblingProcesses {
 public:
  SiblingProcesses();
  ~SiblingProcesses();
  SiblingProcesses(const SiblingProcesses&) = delete;
  SiblingProcesses& operator=(const SiblingProcesses&) = delete;

  // The description of this process that its rank gives to the others: the boot id of its host, its PID namespace and its process id.
  static std::string own_description();

  // Watches the process of a rank. A process of another host or PID namespace, and this process itself, are left out; so is any process
  // where the kernel has no pidfds (before Linux 5.3).
  void add(int64_t rank, const std::string& description);

  // The ranks whose processes have ended since the last call, zombies included.
  std::vector<int64_t> take_ended();

 private:
  struct Process {
    int64_t rank = 0;
    int descriptor = -1;
  };
  const std::string place_;  // host and PID namespace of this process
  std::vector<Process> processes_;
};

}  // namespace based
