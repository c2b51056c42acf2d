#include "based/experiments/packed_results.h"

#include <sys/stat.h>

#include <algorithm>
#include <span>

#include "based/core/config.h"
#include "based/core/files.h"
#include "based/core/text.h"

namespace based {
namespace {

std::string key_of(std::string_view line, const std::string& where) {
  const Config stored = Config::parse_json(line, where);
  const Config* key = stored.find("key");
  const auto* text = key != nullptr ? std::get_if<std::string>(&key->value()) : nullptr;
  if (text == nullptr) throw Error(stored.where() + "it has no string 'key'");
  return *text;
}

}  // namespace

const PackedResults::Line* PackedResults::find(const std::string& key) const {
  const auto found = lines_.find(key);
  return found == lines_.end() ? nullptr : &found->second;
}

PackedResults::Stamp PackedResults::stamp() const {
  struct stat status {};
  if (!path_exists(path_) || ::stat(path_.c_str(), &status) != 0) return {};
  return {static_cast<int64_t>(status.st_ino), status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

void PackedResults::refresh() {
  const Stamp now = stamp();  // before reading: a file that replaces this one meanwhile has another stamp
  if (now == read_) return;
  read_ = {};  // until all lines have been read
  lines_.clear();
  if (now == Stamp{}) return;
  text_ = read_regular_file(path_);
  lines_ = indexed_lines();
  read_ = now;
}

std::unordered_map<std::string, PackedResults::Line> PackedResults::indexed_lines() const {
  std::unordered_map<std::string, Line> lines;
  int64_t number = 0;
  for (size_t begin = 0; begin < text_.size();) {
    const size_t end = std::min(text_.find('\n', begin), text_.size());
    const Line line{std::string_view(text_).substr(begin, end - begin), ++number};
    try {
      const auto [found, is_new] = lines.try_emplace(key_of(line.text, where(line)), line);
      if (!is_new)
        throw Error(where(line) + ": key is " + in_quotes(found->first) + ", as on line " + std::to_string(found->second.number));
    } catch (const Error& error) {
      throw Error(error.what() + std::string("; restore the line, or remove it"));
    }
    begin = end + 1;
  }
  return lines;
}

void PackedResults::write(const std::map<std::string, std::string>& lines) {
  AtomicFile file(path_);
  for (const auto& [key, text] : lines) {
    const std::string line = text + "\n";
    file.write(std::as_bytes(std::span(line)));
  }
  file.commit();
}

}  // namespace based
