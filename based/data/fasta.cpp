#include "based/data/fasta.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "based/core/files.h"
#include "based/core/text.h"

namespace based {
namespace {

constexpr size_t kMostHeaderBytes = 1 << 16;

class FastaParser {
 public:
  std::vector<FastaSequence> parse(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) parse_file(path);
    return std::move(sequences_);
  }

 private:
  void parse_file(const std::string& path) {
    for (const char* end : {".gz", ".zst", ".bz2", ".xz"})
      if (path.ends_with(end)) throw Error(path + ": is compressed; decompress it first");
    const MappedFile file(path);
    std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    inside_ = false;
    for (int64_t number = 1; !text.empty(); ++number) {
      const std::string place = path + ":" + std::to_string(number);
      text.remove_prefix(text.front() == '>' ? parse_header(text, place) : parse_letters(text, place));
    }
    finish();
    if (!inside_) throw Error(path + ": has no sequence");
  }

  // Both return the line's bytes with its line feed. A file need not have line feeds: neither reads beyond a wrong character.
  size_t parse_header(std::string_view text, const std::string& place) {
    finish();
    const std::string_view start = text.substr(0, kMostHeaderBytes);
    const size_t stop = start.find('\n');
    if (stop == std::string_view::npos && start.size() < text.size())
      throw Error(place + ": the header is longer than " + std::to_string(kMostHeaderBytes) + " bytes");
    const std::string_view header = start.substr(1, std::min(stop, start.size()) - 1);
    const std::string name(header.substr(0, header.find_first_of(" \t\r")));
    if (name.empty()) throw Error(place + ": the header has no name after '>'");
    const auto [known, is_new] = places_.emplace(name, place);
    if (!is_new) throw Error(place + ": the sequence " + in_quotes(name) + " is there already, at " + known->second);
    sequences_.push_back({name, {}, place});
    inside_ = true;
    return header.size() + 1 + (stop == std::string_view::npos ? 0 : 1);
  }

  size_t parse_letters(std::string_view text, const std::string& place) {
    for (size_t at = 0; at < text.size(); ++at) {
      const char c = text[at];
      if (c == '\n') return at + 1;
      if (c == '\r' && (at + 1 == text.size() || text[at + 1] == '\n')) continue;
      if (!inside_) throw Error(place + ": a FASTA file must start with a line '>name'");
      const bool lower = c >= 'a' && c <= 'z';
      if (!lower && !(c >= 'A' && c <= 'Z') && c != '*' && c != '-')
        throw Error(place + ": " + in_quotes(text.substr(at, 1)) + " is no letter of a sequence");
      sequences_.back().letters += lower ? static_cast<char>(c - 'a' + 'A') : c;
    }
    return text.size();
  }

  void finish() const {
    if (inside_ && sequences_.back().letters.empty()) throw Error(sequences_.back().place + ": the record has no sequence");
  }

  std::vector<FastaSequence> sequences_;
  std::map<std::string, std::string> places_;
  bool inside_ = false;  // a header of the current file was read
};

}  // namespace

std::vector<FastaSequence> read_fasta(const std::vector<std::string>& paths) { return FastaParser().parse(paths); }

}  // namespace based
