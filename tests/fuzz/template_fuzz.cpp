// Chat templates: any text is a template or an Error that names a place, and rendering stays within the limits. A zero byte separates the
// template from the messages, which are JSON.
#include "based/serve/templates/chat_template.h"
#include "tests/fuzz/fuzz.h"

namespace based {

void fuzz_one(std::span<const std::byte> input) {
  const std::string_view text = as_text(input);
  const std::string_view source = text.substr(0, text.find('\0'));
  const TemplateLimits limits{.steps = 20'000, .output_bytes = 1 << 16};
  accept_or_refuse([&] {
    static const Json usual =
        Json::array({{{"role", "user"}, {"content", " caf\u00e9 'x' "}}, {{"role", "assistant"}, {"content", "1\n2"}}});
    Json given;
    const Json* messages = &usual;
    if (source.size() < text.size()) {
      given = parse_json(text.substr(source.size() + 1), "messages");
      messages = &given;
    }
    const ChatTemplate made = ChatTemplate::parse(source, "fuzz.jinja");
    try {
      const std::string prompt = made.render(*messages, {{"bos_token", "<s>"}, {"add_generation_prompt", true}}, limits);
      require(static_cast<int64_t>(prompt.size()) <= limits.output_bytes, "the prompt is within its limit");
    } catch (const TemplateRenderError& error) {
      require(std::string_view(error.what()).starts_with("fuzz.jinja:"), "an error of rendering names its place");
    }
  });
}

}  // namespace based
