#include "based/parallel/sibling_processes.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace based {
namespace {

// The boot id of the host and the PID namespace. Processes for which both are equal know each other by the same process ids. Empty if /proc
// cannot be read.
std::string own_place() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code none;
  const std::string name_space = std::filesystem::read_symlink("/proc/self/ns/pid", none).string();
  return boot.empty() || name_space.empty() ? "" : boot + " " + name_space;
}

int open_process(pid_t process) {
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, process, 0));
#else
  return -1;
#endif
}

bool has_ended(int descriptor) {
  pollfd one{descriptor, POLLIN, 0};
  return poll(&one, 1, 0) == 1;
}

}  // namespace

SiblingProcesses::SiblingProcesses() : place_(own_place()) {}

SiblingProcesses::~SiblingProcesses() {
  for (const Process& process : processes_) close(process.descriptor);
}

std::string SiblingProcesses::own_description() { return own_place() + " " + std::to_string(getpid()); }

void SiblingProcesses::add(int64_t rank, const std::string& description) {
  const size_t space = description.rfind(' ');
  if (space == std::string::npos || place_.empty() || description.substr(0, space) != place_) return;
  const auto process = static_cast<pid_t>(std::strtol(description.c_str() + space, nullptr, 10));
  if (process <= 0 || process == getpid()) return;
  if (const int descriptor = open_process(process); descriptor >= 0) processes_.push_back({rank, descriptor});
}

std::vector<int64_t> SiblingProcesses::take_ended() {
  const auto ended =
      std::stable_partition(processes_.begin(), processes_.end(), [](const Process& one) { return !has_ended(one.descriptor); });
  std::vector<int64_t> ranks;
  for (auto one = ended; one != processes_.end(); ++one) {
    ranks.push_back(one->rank);
    close(one->descriptor);
  }
  processes_.erase(ended, processes_.end());
  return ranks;
}

}  // namespace based
