#include "based/models/failure.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <new>
#include <regex>
#include <system_error>

#include "based/core/progress.h"
#include "based/models/device.h"

namespace based {
namespace {

constexpr const char* kSmaller = "; a smaller model, batch or context needs less";

}  // namespace

std::string failure_line(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    const auto taken = static_cast<double>(peak_memory(torch::kCPU));
    return "out of memory: " + format_bytes(taken) + " are taken, and no more is given" + kSmaller;
  }
  if (const auto* of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const std::string path = of_files->path1().string();
    return (path.empty() ? "" : path + ": ") + of_files->code().message();
  }
  const auto* of_system = dynamic_cast<const std::system_error*>(&error);
  if (of_system != nullptr && of_system->code() == std::errc::resource_unavailable_try_again)
    return "a thread cannot be started: address space or processes are limited (ulimit -v, ulimit -u); raise the limit, or set "
           "OMP_NUM_THREADS to fewer threads";
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  if (of_torch == nullptr) return error.what();
  const std::string text = of_torch->what_without_backtrace();
  // "… you tried to allocate 17179869184 bytes. …" on a CPU, "… Tried to allocate 20.00 GiB. …" on a GPU.
  std::smatch asked;
  if (std::regex_search(text, asked, std::regex("ried to allocate ([0-9.]+ [A-Za-z]+)")))
    return "out of memory: " + asked[1].str() + " were asked for at once" + kSmaller;
  return text;
}

}  // namespace based
