#include "based/core/output_folder.h"

#include <utility>

#include "based/core/folders.h"

namespace based {
namespace {

bool is_of(const std::string& name, const std::string& wanted) {
  return wanted.starts_with('*') ? name.ends_with(wanted.substr(1)) : name == wanted;
}

}  // namespace

Holding model_holding() { return {"a model", {"config.json", "model.safetensors"}}; }
Holding tokenizer_holding() { return {"a tokenizer", {"tokenizer.json", "vocab.json", "merges.txt"}}; }
Holding checkpoints_holding() { return {"checkpoints of a training", {"checkpoints"}}; }
Holding shards_holding() { return {"token shards", {"*.tokens"}}; }

std::string held(const std::string& folder, const Holding& holding) {
  if (!is_folder(folder)) return "";
  for (const std::string& name : names_in(folder))
    for (const std::string& wanted : holding.names)
      if (is_of(name, wanted)) return name;
  return "";
}

void require_free(const std::string& folder, const OutputRule& rule, bool overwrite) {
  const auto described = [&](const std::vector<Holding>& holdings) {
    std::string text;
    for (const Holding& holding : holdings)
      if (const std::string name = held(folder, holding); !name.empty())
        text += (text.empty() ? "" : " and ") + holding.what + " (" + name + ")";
    return text;
  };
  const std::string own = described(rule.own), foreign = described(rule.foreign), begin = rule.option + " " + folder + ": holds ";
  if (!foreign.empty())
    throw UsageError(begin + (own.empty() ? "" : own + " and ") + foreign + "; this command does not replace that: name another folder");
  if (own.empty() || overwrite) return;
  throw UsageError(begin + own +
                   (rule.can_overwrite ? "; --overwrite replaces that, another " + rule.option + " keeps it"
                                       : "; name another folder, or remove it first"));
}

OutputFolder::OutputFolder(const std::string& folder, OutputRule rule, bool overwrite)
    : folder_(folder), rule_(std::move(rule)), lock_(folder) {
  require_free(folder, rule_, overwrite);
  // Existing files are replaced atomically, one by one, so a failed command must not remove them.
  for (const Holding& holding : rule_.own) kept_ = kept_ || !held(folder, holding).empty();
}

OutputFolder::~OutputFolder() {
  if (kept_) return;
  try {
    for (const Holding& holding : rule_.own)
      for (std::string name = held(folder_, holding); !name.empty(); name = held(folder_, holding)) remove_file(folder_ + "/" + name);
  } catch (const Error&) {  // the command's own error is the one to report
    return;
  }
}

}  // namespace based
