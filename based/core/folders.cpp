#include "based/core/folders.h"

#include <algorithm>
#include <filesystem>
#include <set>

namespace based {
namespace {

namespace fs = std::filesystem;

void require(const std::error_code& error, const std::string& path, const char* what) {
  if (error) throw Error(path + ": " + what + ": " + error.message());
}

}  // namespace

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

bool is_folder(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return false;
  require(error, path, "cannot be looked for");
  return status.type() == fs::file_type::directory;
}

bool make_folder(const std::string& path) {
  std::error_code error;
  const bool made = fs::create_directories(path, error);
  require(error, path, "cannot make the folder");
  return made;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  require(error, folder, "the folder cannot be read");
  std::sort(names.begin(), names.end());
  return names;
}

std::string named_twice(const std::vector<std::string>& paths) {
  std::set<fs::path> seen;
  for (const std::string& path : paths) {
    std::error_code error;
    const fs::path whole = fs::weakly_canonical(path, error);
    if (!seen.insert(error ? fs::path(path) : whole).second) return path;
  }
  return "";
}

void remove_file(const std::string& path) {
  std::error_code error;
  fs::remove(path, error);
  require(error, path, "cannot be removed");
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  require(error, path, "cannot be removed");
}

void rename_path(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  require(error, from, ("cannot be renamed to " + to).c_str());
}

}  // namespace based
