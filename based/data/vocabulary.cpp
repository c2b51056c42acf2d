#include "based/data/vocabulary.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include "based/core/files.h"
#include "based/core/json.h"
#include "based/core/text.h"
#include "based/core/utf8.h"
#include "based/data/tokenizer_settings.h"

namespace based {
namespace {

constexpr uint64_t kMaxVocabularyBytes = 256 << 20;  // size limit of each file

// Returns the place of an entry for messages: "<file>: <entry>".
using Where = std::function<std::string()>;

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int, 0x144> byte{};  // the byte of a character; -1: not in the alphabet
  std::vector<unsigned char> in_order;
};

const Alphabet& alphabet() {
  static const Alphabet made = [] {
    Alphabet a;
    a.byte.fill(-1);
    const auto prints = [](int b) { return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae; };
    char32_t next = 0x100;
    for (const bool printing : {true, false}) {
      for (int b = 0; b < 256; ++b) {
        if (prints(b) != printing) continue;
        const char32_t c = printing ? static_cast<char32_t>(b) : next++;
        a.character[static_cast<size_t>(b)] = c;
        a.byte[c] = b;
        a.in_order.push_back(static_cast<unsigned char>(b));
      }
    }
    return a;
  }();
  return made;
}

// The inverse of token_name; nullopt if a character is not in the alphabet.
std::optional<std::string> bytes_of_name(std::string_view name) {
  std::string bytes;
  for (const char *at = name.data(), *end = at + name.size(); at < end;) {
    const Utf8Char c = utf8_at(at, end);
    if (c.code >= alphabet().byte.size() || alphabet().byte[c.code] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().byte[c.code]);
    at += c.size;
  }
  return bytes;
}

// Bytes 0xc0, 0xc1 and from 0xf5 on are in no valid text.
bool is_byte_of_utf8(unsigned char byte) { return byte < 0xc0 || (byte >= 0xc2 && byte < 0xf5); }

std::string entry(const std::string& source, std::string_view name) { return source + ": token " + in_quotes(name); }

// Collects names and ids from a file, before the merges are known.
class Builder {
 public:
  explicit Builder(std::string source) : source_(std::move(source)) {}

  enum class Kind { ordinary, added, special };

  void add(std::string_view name, int64_t id, Kind kind) {
    if (name.empty()) throw Error(source_ + ": id " + std::to_string(id) + ": the token is empty");
    if (name.size() > kMaxTokenBytes) {
      throw Error(entry(source_, name) + ": longer than " + std::to_string(kMaxTokenBytes) + " bytes");
    }
    if (id < 0) throw Error(entry(source_, name) + ": id " + std::to_string(id) + " is negative");
    if (const auto [known, added] = ids_.emplace(name, id); !added) {
      if (known->second != id)
        throw Error(entry(source_, name) + ": has both id " + std::to_string(known->second) + " and " + std::to_string(id));
      if (kind == Kind::added) throw Error(entry(source_, name) + ": is in model.vocab and in added_tokens, but is not special");
      set_kind(name, kind);
      return;
    }
    if (const auto [taken, added] = name_of_.emplace(id, std::string(name)); !added) {
      throw Error(entry(source_, name) + ": id " + std::to_string(id) + " is already the id of " + in_quotes(taken->second));
    }
    set_kind(name, kind);
  }

  bool has(const std::string& name) const { return ids_.contains(name); }

  // Called once, after all tokens.
  void close() {
    const int64_t count = static_cast<int64_t>(ids_.size());
    if (count == 0) throw Error(source_ + ": no tokens");
    for (const auto& [name, id] : ids_) {
      if (id >= count) {
        throw Error(entry(source_, name) + ": id " + std::to_string(id) + " leaves a gap: " + std::to_string(count) +
                    " tokens must have the ids 0 to " + std::to_string(count - 1));
      }
    }
  }

  void add_merge(std::string_view left, std::string_view right, const Where& where) {
    const auto id_of = [&](const std::string& name) {
      const auto found = ids_.find(name);
      if (found == ids_.end()) throw Error(where() + ": " + in_quotes(name) + " is not a token of " + source_);
      if (kind_of(name) != Kind::ordinary)
        throw Error(where() + ": " + in_quotes(name) + (kind_of(name) == Kind::special ? " is a special token" : " is an added token"));
      return static_cast<int32_t>(found->second);
    };
    if (left.empty() || right.empty()) throw Error(where() + ": one side of the merge is empty");
    const std::string l(left), r(right);
    const Merge merge{id_of(l), id_of(r), id_of(l + r)};
    const uint64_t pair = static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right);
    if (const auto [first, added] = pairs_.emplace(pair, vocabulary_.merges.size()); !added) {
      throw Error(where() + ": the merge was given before, as number " + std::to_string(first->second + 1));
    }
    vocabulary_.merges.push_back(merge);
  }

  // With `unmade_are_special`, a token that no merge produces is special, unless two other tokens spell it: vocab.json cannot mark special
  // tokens.
  Vocabulary finish(bool unmade_are_special) {
    const size_t count = ids_.size();
    std::vector<bool> made(count, false);
    for (const Merge& merge : vocabulary_.merges) made[static_cast<size_t>(merge.result)] = true;
    vocabulary_.tokens.resize(count);
    std::array<bool, 256> has_byte{};
    for (size_t id = 0; id < count; ++id) {
      const std::string& name = name_of_.at(static_cast<int64_t>(id));
      const std::optional<std::string> bytes = bytes_of_name(name);
      const bool special = kind_of(name) == Kind::special;
      if (kind_of(name) == Kind::added) {
        vocabulary_.added.push_back(static_cast<int32_t>(id));
        vocabulary_.tokens[id] = name;
      } else if (!special && bytes && (made[id] || bytes->size() == 1)) {
        if (bytes->size() == 1) has_byte[static_cast<unsigned char>(bytes->front())] = true;
        vocabulary_.tokens[id] = *bytes;
      } else if (special || (unmade_are_special && !made[id])) {
        if (!special) refuse_splittable(name);
        vocabulary_.specials.push_back(static_cast<int32_t>(id));
        vocabulary_.tokens[id] = name;
      } else if (!bytes) {
        throw Error(entry(source_, name) + ": has a character that stands for no byte");
      } else {
        throw Error(entry(source_, name) + ": no merge makes it, and it is no special token");
      }
    }
    for (int b = 0; b < 256; ++b) {
      if (!has_byte[static_cast<size_t>(b)] && is_byte_of_utf8(static_cast<unsigned char>(b))) {
        throw Error(source_ + ": byte " + std::to_string(b) + " has no token (its name would be " +
                    token_name(std::string(1, static_cast<char>(b))) + "); a byte-level vocabulary needs all bytes of UTF-8");
      }
    }
    return std::move(vocabulary_);
  }

 private:
  void set_kind(std::string_view name, Kind kind) {
    if (kind != Kind::ordinary) kinds_[std::string(name)] = kind;
  }
  Kind kind_of(const std::string& name) const {
    const auto found = kinds_.find(name);
    return found == kinds_.end() ? Kind::ordinary : found->second;
  }

  // If merges are missing, because the file is truncated or belongs to another vocabulary, their tokens must not silently become special.
  void refuse_splittable(const std::string& name) const {
    for (size_t cut = 1; cut < name.size(); ++cut) {
      const std::string left = name.substr(0, cut), right = name.substr(cut);
      if (ids_.count(left) && ids_.count(right)) {
        throw Error(entry(source_, name) + ": no merge makes it, although the tokens " + in_quotes(left) + " and " + in_quotes(right) +
                    " spell it; is the list of merges cut off? (a special token like this one needs a tokenizer.json)");
      }
    }
  }

  std::string source_;
  std::unordered_map<std::string, int64_t> ids_;
  std::unordered_map<int64_t, std::string> name_of_;
  std::unordered_map<std::string, Kind> kinds_;  // no entry: ordinary
  std::unordered_map<uint64_t, size_t> pairs_;
  Vocabulary vocabulary_;
};

// Accepts negative ids, for which Builder has a message.
bool fits_an_id(const Json& id) { return id.is_number_integer() && !(id.is_number_unsigned() && id.get<uint64_t>() > INT32_MAX); }

void add_tokens(Builder& builder, const Json& vocab, const std::string& source) {
  if (!vocab.is_object()) throw Error(source + ": must be an object of token names and ids");
  for (const auto& [name, id] : vocab.items()) {
    if (!fits_an_id(id))
      throw Error(entry(source, name) + ": the id must be an integer from 0 to 2147483647, got " + dump_json(id).substr(0, 40));
    builder.add(name, id.get<int64_t>(), Builder::Kind::ordinary);
  }
}

void add_added_tokens(Builder& builder, const Json& root, const std::string& source) {
  const auto found = root.find("added_tokens");
  if (found == root.end() || found->is_null()) return;
  if (!found->is_array()) throw Error(source + ": added_tokens: must be a list");
  size_t index = 0;
  int64_t last = -1;  // the last id that is not in model.vocab
  for (const Json& token : *found) {
    const std::string where = source + ": added_tokens[" + std::to_string(index++) + "]";
    if (!token.is_object() || !token.contains("content") || !token["content"].is_string() || !token.contains("id") ||
        !fits_an_id(token["id"])) {
      throw Error(where + ": must be an object with a text 'content' and an integer 'id' up to 2147483647");
    }
    const auto content = token["content"].get<std::string>();
    const auto id = token["id"].get<int64_t>();
    if (!builder.has(content)) {
      if (id < last)
        throw Error(where + ".id: " + std::to_string(id) + " follows " + std::to_string(last) +
                    "; the tokenizers library numbers added tokens in the order of the list, and would give others: put them in order");
      last = id;
    }
    builder.add(content, id, token.value("special", Json(true)) == Json(false) ? Builder::Kind::added : Builder::Kind::special);
  }
}

}  // namespace

std::string token_name(std::string_view bytes) {
  std::string name;
  for (const char c : bytes) append_utf8(alphabet().character[static_cast<unsigned char>(c)], name);
  return name;
}

const std::vector<unsigned char>& byte_alphabet() { return alphabet().in_order; }

Vocabulary parse_vocab_and_merges(std::string_view vocab_json, const std::string& vocab_source, std::string_view merges_txt,
                                  const std::string& merges_source) {
  Builder builder(vocab_source);
  add_tokens(builder, parse_json(vocab_json, vocab_source), vocab_source);
  builder.close();
  int64_t line_number = 0;
  for (size_t at = 0; at < merges_txt.size();) {
    const size_t stop = std::min(merges_txt.find('\n', at), merges_txt.size());
    const std::string_view line = merges_txt.substr(at, stop - at);
    at = stop + 1;
    ++line_number;
    if (line_number == 1 && line.substr(0, 9) == "#version:") continue;
    const Where where = [&] { return merges_source + ":" + std::to_string(line_number) + ": " + in_quotes(line); };
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      throw Error(where() + ": a merge is two tokens with one space between them");
    }
    builder.add_merge(line.substr(0, space), line.substr(space + 1), where);
  }
  return builder.finish(true);
}

Vocabulary parse_tokenizer_json(std::string_view text, const std::string& source) {
  const Json root = parse_json(text, source);
  if (!root.is_object()) throw Error(source + ": must be an object");
  refuse_other_settings(root, source);
  const Json& model = root["model"];
  if (!model.contains("vocab") || !model.contains("merges") || !model["merges"].is_array()) {
    throw Error(source + ": model: needs an object 'vocab' and a list 'merges'");
  }
  Builder builder(source);
  add_tokens(builder, model["vocab"], source + ": model.vocab");
  add_added_tokens(builder, root, source);
  builder.close();
  size_t index = 0;
  for (const Json& merge : model["merges"]) {
    const Where where = [&] { return source + ": model.merges[" + std::to_string(index) + "] " + in_quotes(dump_json(merge)); };
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {  // the older format, "left right"
      const auto pair = merge.get<std::string>();
      const size_t space = pair.find(' ');
      if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos) {
        throw Error(where() + ": a merge is two tokens with one space between them");
      }
      left = pair.substr(0, space);
      right = pair.substr(space + 1);
    } else {
      throw Error(where() + ": a merge must be a list of two tokens");
    }
    builder.add_merge(left, right, where);
    ++index;
  }
  Vocabulary vocabulary = builder.finish(false);
  vocabulary.nfc = root.contains("normalizer") && !root["normalizer"].is_null();  // form C is the only one that is not refused
  return vocabulary;
}

std::string vocabulary_file(const std::string& folder) {
  for (const char* name : {"tokenizer.json", "vocab.json"}) {
    const std::string path = std::filesystem::path(folder) / name;
    if (path_exists(path)) return path;
  }
  throw Error(folder + ": no tokenizer here: neither tokenizer.json nor vocab.json with merges.txt");
}

Vocabulary read_vocabulary(const std::string& folder) {
  const std::filesystem::path path = vocabulary_file(folder);
  const auto read = [](const std::string& file) { return read_regular_file(file, kMaxVocabularyBytes); };
  if (path.filename() == "tokenizer.json") return parse_tokenizer_json(read(path), path);
  const std::string merges = path.parent_path() / "merges.txt";
  return parse_vocab_and_merges(read(path), path, read(merges), merges);
}

}  // namespace based
