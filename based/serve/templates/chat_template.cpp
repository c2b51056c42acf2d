#include "based/serve/templates/chat_template.h"

#include <utility>
#include <vector>

#include "based/core/files.h"
#include "based/serve/templates/evaluate.h"

namespace based {

ChatTemplate ChatTemplate::load(const std::string& path) {
  constexpr uint64_t kMaxTemplateBytes = uint64_t{1} << 20U;
  return parse(read_file(path, kMaxTemplateBytes), path);
}

ChatTemplate ChatTemplate::parse(std::string_view source, std::string name) {
  chat_template::Program program{chat_template::make_source(source, std::move(name)), {}};
  program.statements = chat_template::parse_template(program.source, TemplateLimits().depth);
  return ChatTemplate(std::make_shared<const chat_template::Program>(std::move(program)));
}

std::string ChatTemplate::render(const Json& messages, const Json& extras, const TemplateLimits& limits) const {
  std::vector<std::pair<std::string, chat_template::Value>> variables;
  variables.reserve(extras.size() + 1);
  for (const auto& extra : extras.items()) variables.emplace_back(extra.key(), chat_template::from_json(extra.value()));
  variables.emplace_back("messages", chat_template::from_json(messages));
  const chat_template::Value object = chat_template::make_object(std::move(variables), kMaxJsonDepth + 1);
  return chat_template::evaluate(*program_, *object.as_object(), limits);
}

}  // namespace based
