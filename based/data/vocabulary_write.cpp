#include <algorithm>

#include "based/core/files.h"
#include "based/core/json.h"
#include "based/data/vocabulary.h"

namespace based {
namespace {

std::vector<std::string> token_names(const Vocabulary& vocabulary) {
  std::vector<std::string> names;
  names.reserve(vocabulary.tokens.size());
  for (const std::string& bytes : vocabulary.tokens) names.push_back(token_name(bytes));
  for (const auto* literal : {&vocabulary.specials, &vocabulary.added})
    for (const int32_t id : *literal) names[static_cast<size_t>(id)] = vocabulary.tokens[static_cast<size_t>(id)];
  return names;
}

Json tokenizer_json(const Vocabulary& vocabulary, const std::vector<std::string>& names, Json vocab) {
  Json merges = Json::array(), added = Json::array();
  for (const Merge& merge : vocabulary.merges) {
    merges.push_back(Json::array({names[static_cast<size_t>(merge.left)], names[static_cast<size_t>(merge.right)]}));
  }
  const auto add = [&](int32_t id, bool special) {
    added.push_back({{"id", id},
                     {"content", names[static_cast<size_t>(id)]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", !special},
                     {"special", special}});
  };
  for (const int32_t id : vocabulary.specials) add(id, true);
  for (const int32_t id : vocabulary.added) add(id, false);
  const auto byte_level = [](bool add_prefix_space, bool trim_offsets) {
    return Json{{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", trim_offsets}, {"use_regex", true}};
  };
  Json root{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = std::move(added);
  root["normalizer"] = vocabulary.nfc ? Json{{"type", "NFC"}} : Json(nullptr);
  root["pre_tokenizer"] = byte_level(false, true);
  root["post_processor"] = byte_level(true, false);  // affects offsets only; adds no token
  root["decoder"] = byte_level(true, true);
  root["model"] = Json{{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false}};
  root["model"]["vocab"] = std::move(vocab);
  root["model"]["merges"] = std::move(merges);
  return root;
}

}  // namespace

void write_vocabulary(const Vocabulary& vocabulary, const std::string& folder) {
  const std::vector<std::string> names = token_names(vocabulary);
  Json vocab = Json::object();
  auto& members = vocab.get_ref<Json::object_t&>();  // appends directly: Json's insertion would search the whole list
  for (size_t id = 0; id < names.size(); ++id)
    if (!std::binary_search(vocabulary.added.begin(), vocabulary.added.end(), static_cast<int32_t>(id)))
      members.emplace_back(names[id], id);
  const auto write = [](AtomicFile& file, const std::string& text) { file.write(std::as_bytes(std::span(text))); };
  if (vocabulary.nfc || !vocabulary.added.empty()) {
    AtomicFile file(folder + "/tokenizer.json");
    write(file, dump_json(tokenizer_json(vocabulary, names, std::move(vocab)), 2));
    file.commit();
    return;
  }
  // All files are written before any is renamed: if the disk is full, the folder stays as it was.
  AtomicFile vocab_file(folder + "/vocab.json"), merges_file(folder + "/merges.txt"), tokenizer_file(folder + "/tokenizer.json");
  write(vocab_file, dump_json(vocab));

  std::string merges = "#version: 0.2\n";
  for (const Merge& merge : vocabulary.merges) {
    merges += names[static_cast<size_t>(merge.left)] + " " + names[static_cast<size_t>(merge.right)] + "\n";
  }
  write(merges_file, merges);
  write(tokenizer_file, dump_json(tokenizer_json(vocabulary, names, std::move(vocab)), 2));
  for (AtomicFile* file : {&vocab_file, &merges_file, &tokenizer_file}) file->commit();
}

}  // namespace based
