#include "based/eval/task.h"

#include "based/eval/tasks/custom.h"

namespace based {

const std::vector<EvalTaskKind>& eval_task_kinds() {
  static const std::vector<EvalTaskKind> kinds{
#define BASED_EVAL_TASK(name) eval_task_##name(),
#include "based/eval/tasks.def"
#undef BASED_EVAL_TASK
  };
  return kinds;
}

std::vector<EvalDocument> EvalTask::documents(int64_t first, int64_t count) const {
  BASED_ASSERT(first >= 0 && count >= 0 && first + count <= size());
  std::vector<EvalDocument> documents;
  for (int64_t index = first; index < first + count; ++index) {
    documents.push_back(document(index));
    documents.back().index = index;
  }
  return documents;
}

bool is_perplexity(const std::string& metric) { return metric.ends_with("perplexity") || metric == "bits_per_byte"; }

bool is_custom_task(const std::string& name) { return name.ends_with(".toml"); }

EvalTaskKind find_eval_task(const std::string& name) {
  if (is_custom_task(name)) return read_custom_task(name);
  const std::string wanted = name == "lambada" ? "lambada_openai" : name;  // the paper's tables name no version
  std::vector<std::string> names;
  for (const EvalTaskKind& kind : eval_task_kinds()) {
    if (kind.name == wanted) return kind;
    names.push_back(kind.name);
  }
  std::string known;
  for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
  const std::string close = nearest(name, names);
  throw UsageError("there is no task '" + name + "'" + (close.empty() ? "" : ", did you mean '" + close + "'?") +
                   "; known tasks: " + known);
}

}  // namespace based
