#include "based/core/temporaries.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "based/core/error.h"
#include "based/core/folders.h"

namespace based {
namespace {

constexpr std::string_view kTemporary = ".tmp-";

bool is_temporary(const std::string& name) {
  const size_t at = name.rfind(kTemporary), first = at + kTemporary.size(), dash = name.find('-', first);
  return at != std::string::npos && at > 0 && dash != std::string::npos && dash > first && dash + 1 < name.size() &&
         name.find_first_not_of("0123456789-", first) == std::string::npos;
}

}  // namespace

std::string temporary_sibling(const std::string& path) {
  constexpr size_t kMostOfName = 100;  // leaves room for the suffix within the smallest limit of file systems in use, 143 bytes
  static std::atomic<uint64_t> counter{0};
  const std::filesystem::path full(path);
  std::string name = full.filename().string();
  if (name.size() > kMostOfName) {
    size_t cut = kMostOfName;
    while (cut > 1 && (static_cast<unsigned char>(name[cut]) & 0xc0) == 0x80) --cut;  // no character is split
    name.resize(cut);
  }
  name += kTemporary;
  name += std::to_string(::getpid()) + "-" + std::to_string(counter++);
  return (full.parent_path() / name).string();
}

void remove_stale_temporaries(const std::string& folder) {
  for (const std::string& name : names_in(folder)) {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    if (is_temporary(name) && std::filesystem::is_regular_file(path, error)) std::filesystem::remove(path, error);
    if (error) throw Error(folder + ": what a killed run left cannot be removed: " + error.message());
  }
}

std::string temporary_folder() {
  const char* named = std::getenv("TMPDIR");
  if (named == nullptr || *named == '\0') return "/tmp";
  std::error_code error;
  if (!std::filesystem::is_directory(named, error))
    throw Error("TMPDIR=" + std::string(named) + ": no folder for temporary files; set it to one, or leave it away");
  return named;
}

}  // namespace based
