#include "based/data/tokenizer_settings.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "based/core/text.h"
#include "based/data/nfc.h"

namespace based {
namespace {

// One JSON object of the file. Each of its keys must be checked once.
class Section {
 public:
  // `path` is the object's place in the file: "model.", or "" for the root.
  Section(const Json& object, std::string path, std::string source) : object_(object), path_(std::move(path)), source_(std::move(source)) {}

  // Throws Error unless `key` is absent or has one of the `accepted` values. The message names the first of them and the `remedy`.
  void expect(const char* key, const std::vector<Json>& accepted, const std::string& remedy) {
    known_.emplace_back(key);
    const auto found = object_.find(key);
    if (found == object_.end() || std::find(accepted.begin(), accepted.end(), *found) != accepted.end()) return;
    fail(key, in_quotes(dump_json(*found)) + " is not supported, only " + dump_json(accepted.front()) + ": " + remedy);
  }
  void require(const char* key, const Json& wanted, const std::string& remedy) {
    if (object_.find(key) == object_.end()) fail(key, "is missing, it must be " + dump_json(wanted));
    expect(key, {wanted}, remedy);
  }
  void require_flag(const char* key) {
    if (object_.find(key) == object_.end()) fail(key, "is missing, it must be true or false");
    flag(key);
  }
  void flag(const char* key) { expect(key, {false, true}, "it must be true or false"); }
  // Accepts keys that are checked elsewhere or do not affect ids and text.
  void pass(std::initializer_list<const char*> keys) { known_.insert(known_.end(), keys.begin(), keys.end()); }

  // Throws Error for keys that were not checked. Called at the end.
  void refuse_the_rest() const {
    for (const auto& [key, value] : object_.items())
      if (std::find(known_.begin(), known_.end(), key) == known_.end())
        fail(printable(key), "is not a setting that this program knows; remove it if the ids do not depend on it");
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what) const { throw Error(source_ + ": " + path_ + key + ": " + what); }

  const Json& object_;
  std::string path_, source_;
  std::vector<std::string> known_;
};

const Json& object_at(const Json& root, const char* key, const std::string& source) {
  const auto found = root.find(key);
  if (found == root.end() || !found->is_object()) throw Error(source + ": " + key + ": must be an object");
  return *found;
}

// Accepts a setting that is absent, null, or ByteLevel, which has no effect on ids here.
void check_byte_level(const Json& root, const char* key, const std::string& source, const std::string& remedy) {
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return;
  Section section(object_at(root, key, source), std::string(key) + ".", source);
  section.require("type", "ByteLevel", remedy);
  section.pass({"add_prefix_space", "trim_offsets", "use_regex"});
  section.refuse_the_rest();
}

void check_model(const Json& model, const std::string& source) {
  Section section(model, "model.", source);
  section.expect("type", {"BPE"}, "train a byte-level BPE (`based tokenize train`)");
  section.expect("dropout", {nullptr, 0.0}, "set it to null: it is meant for training");
  section.expect("unk_token", {nullptr, ""}, "set it to null: every byte has a token, so that none is unknown");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    section.expect(key, {nullptr, ""}, "the tokens of a byte-level BPE have none; convert the vocabulary");
  section.flag("fuse_unk");  // no effect: every byte has a token
  section.expect("byte_fallback", {false}, "set it to false: every byte has a token");
  section.expect("ignore_merges", {false}, "set it to false where every token is made by merges; else the ids need it");
  section.pass({"vocab", "merges"});
  section.refuse_the_rest();
}

// Checks the settings of an added token, which is searched in the text before all other processing.
void check_added_token(const Json& token, const std::string& path, const std::string& source) {
  Section section(token, path, source);
  section.require_flag("special");
  for (const char* key : {"single_word", "lstrip", "rstrip"})
    section.expect(key, {false}, "the token would be found in other texts with it; set it to false");
  section.flag("normalized");
  section.pass({"id", "content"});
  section.refuse_the_rest();
}

// Checks the settings of each added token, and those on which all must agree. Tokens with `normalized` false are found in the text as it
// is, then the others in the normalized text between them.
void check_added_tokens(const Json& root, const std::string& source) {
  const auto found = root.find("added_tokens");
  if (found == root.end() || !found->is_array()) return;
  const bool is_normalized = root.contains("normalizer") && !root["normalizer"].is_null();
  const auto is_ordinary = [](const Json& token) { return token.is_object() && token.value("special", Json(true)) == Json(false); };
  const bool has_ordinary = std::any_of(found->begin(), found->end(), is_ordinary);
  for (size_t i = 0; i < found->size(); ++i) {
    const Json& token = (*found)[i];
    const std::string path = "added_tokens[" + std::to_string(i) + "]";
    if (!token.is_object()) continue;  // reported by the reader of the vocabulary
    check_added_token(token, path + ".", source);
    const bool late = token.value("normalized", Json(false)) == Json(true);
    if (is_normalized || has_ordinary) {
      if (late != is_ordinary(token))
        throw Error(source + ": " + path +
                    ".normalized: must be false for special tokens and true for others, since special tokens are found first here");
      if (late && token.contains("content") && token["content"].is_string() &&
          to_nfc(token["content"].get<std::string>()) != token["content"])
        throw Error(source + ": " + path + ".content: must be in Unicode's form C, since it is searched in normalized text");
    } else if (token.value("normalized", Json(false)) != found->front().value("normalized", Json(false))) {
      throw Error(source + ": " + path +
                  ".normalized: must be the same for all added tokens, since those that differ are found one after the "
                  "other; set all to false, which changes nothing where no token begins within another");
    }
  }
}

}  // namespace

void refuse_other_settings(const Json& root, const std::string& source) {
  Section section(root, "", source);
  section.expect("version", {"1.0"}, "save the tokenizer with a version of the tokenizers library that writes it");
  section.expect("truncation", {nullptr}, "set it to null: texts are encoded whole; cut those that are too long yourself");
  section.expect("padding", {nullptr}, "set it to null: texts of any length are encoded side by side without padding");
  section.expect("normalizer", {nullptr, Json{{"type", "NFC"}}},
                 "set it to null or {\"type\": \"NFC\"}, and normalize the texts before they are encoded");
  section.pass({"added_tokens", "pre_tokenizer", "post_processor", "decoder", "model"});
  section.refuse_the_rest();

  check_model(object_at(root, "model", source), source);
  Section pre(object_at(root, "pre_tokenizer", source), "pre_tokenizer.", source);
  pre.require("type", "ByteLevel", "texts are cut as GPT-2 cuts them; train a byte-level BPE (`based tokenize train`)");
  pre.require("add_prefix_space", false, "set it to false, and put the space in front of the text yourself");
  pre.expect("use_regex", {true}, "texts are cut as GPT-2 cuts them; train a byte-level BPE (`based tokenize train`)");
  pre.pass({"trim_offsets"});
  pre.refuse_the_rest();
  check_byte_level(root, "post_processor", source,
                   "set it to null, and put the special tokens that it adds into the text or the ids yourself");
  check_byte_level(root, "decoder", source, "set it to {\"type\": \"ByteLevel\", …}: tokens are the bytes of their text");
  check_added_tokens(root, source);
}

}  // namespace based
