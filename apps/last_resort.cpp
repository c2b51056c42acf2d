#include "apps/last_resort.h"

#include <ATen/Parallel.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <fstream>

#include "apps/output.h"
#include "based/core/descriptors.h"
#include "based/core/progress.h"
#include "based/models/failure.h"

namespace based::apps {
namespace {

constexpr const char* kRemedy = "raise the limit, or set OMP_NUM_THREADS to fewer threads";

// Writes a fixed text if there is no memory to format the message.
[[noreturn]] void end_with(const std::exception& error) {
  try {
    print_message(failure_line(error));
  } catch (const std::exception&) {
    write_all(STDERR_FILENO, "based: out of memory\n");
  }
  _exit(1);
}

[[noreturn]] void on_terminate() {
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::exception& error) {
      end_with(error);
    } catch (...) {  // not an exception of this program: abort() shows where it was thrown
    }
  }
  std::abort();
}

// Runs before the static initializers of LibTorch, which may run out of memory.
void install() { std::set_terminate(on_terminate); }
[[gnu::section(".preinit_array"), gnu::used]] void (*const installed_first)() = install;

// Bytes of address space that the process uses; 0 if unknown.
uint64_t address_space_taken() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

size_t stack_size() {
  pthread_attr_t attributes;
  size_t size = size_t{8} << 20;
  if (pthread_attr_init(&attributes) != 0) return size;
  pthread_attr_getstacksize(&attributes, &size);
  pthread_attr_destroy(&attributes);
  return size;
}

}  // namespace

void fit_threads_to_address_space() {
  constexpr uint64_t kShare = 4;  // a quarter of the remaining space is for stacks
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  mallopt(M_ARENA_MAX, 1);  // each further thread's heap would reserve 64 MiB
  const uint64_t taken = address_space_taken(), left = limit.rlim_cur > taken ? limit.rlim_cur - taken : 0;
  const int usual = at::get_num_threads(), most = static_cast<int>(std::min<uint64_t>(left / kShare / stack_size() + 1, INT32_MAX));
  if (usual <= most) return;
  at::set_num_threads(most);
  print_message("the address space is limited to " + format_bytes(static_cast<double>(limit.rlim_cur)) +
                " (ulimit -v): " + std::to_string(most) + " of " + std::to_string(usual) + " threads are used");
}

}  // namespace based::apps

// Replaces the C library's exit() for the program's shared libraries, which may call it while threads still run. Returning from main does
// not call this function.
extern "C" [[noreturn]] void exit(int) noexcept {
  based::apps::print_message(
      std::string("a library ended the program, for the reason above; if threads cannot be started, address space or "
                  "processes are limited (ulimit -v, ulimit -u): ") +
      based::apps::kRemedy);
  _exit(1);
}
