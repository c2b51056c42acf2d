#include "based/models/failure.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>

#include "based/core/progress.h"
#include "based/models/device.h"

namespace based {
namespace {

constexpr const char* kSmaller = "; a smaller model, batch or context needs less";

// Extracts "17179869184 bytes" or "20.00 GiB" from torch's message: "… you tried to allocate 17179869184 bytes. …" on a CPU, "… Tried to
// allocate 20.00 GiB. …" on a GPU. Empty if there is none. Does not use std::regex, which needs a stack frame for each character.
std::string_view asked_for(std::string_view text) {
  constexpr std::string_view kBefore = "ried to allocate ", kNumber = "0123456789.",
                             kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  for (size_t at = text.find(kBefore); at != std::string_view::npos; at = text.find(kBefore, at + 1)) {
    const std::string_view rest = text.substr(at + kBefore.size());
    const size_t space = std::min(rest.find_first_not_of(kNumber), rest.size());
    if (space == 0 || space == rest.size() || rest[space] != ' ') continue;
    const size_t end = std::min(rest.find_first_not_of(kLetters, space + 1), rest.size());
    if (end > space + 1) return rest.substr(0, end);
  }
  return {};
}

}  // namespace

std::string failure_line(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    const auto taken = static_cast<double>(peak_memory(torch::kCPU));
    return "out of memory: " + format_bytes(taken) + " are taken, and no more is given" + kSmaller;
  }
  if (const auto* file_error = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const std::string path = file_error->path1().string();
    return (path.empty() ? "" : path + ": ") + file_error->code().message();
  }
  const auto* system_error = dynamic_cast<const std::system_error*>(&error);
  if (system_error != nullptr && system_error->code() == std::errc::resource_unavailable_try_again)
    return "a thread cannot be started: address space or processes are limited (ulimit -v, ulimit -u); raise the limit, or set "
           "OMP_NUM_THREADS to fewer threads";
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  if (torch_error == nullptr) return error.what();
  const std::string text = torch_error->what_without_backtrace();
  if (const std::string_view asked = asked_for(text); !asked.empty())
    return "out of memory: " + std::string(asked) + " were asked for at once" + kSmaller;
  return text;
}

}  // namespace based
