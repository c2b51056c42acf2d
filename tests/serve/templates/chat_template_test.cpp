#include "based/serve/templates/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace chat_template_test {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

const Json& no_messages() {
  static const Json none = Json::array();
  return none;
}

std::string rendered(const std::string& source, const Json& messages = no_messages(), const TemplateLimits& limits = {}) {
  return ChatTemplate::parse(source, "t.jinja").render(messages, Json::object(), limits);
}

std::string error_of(const std::string& source, const TemplateLimits& limits = {}) {
  try {
    return "no error: " + rendered(source, no_messages(), limits);
  } catch (const Error& error) {
    return error.what();
  }
}

// The file's outputs are those of jinja2, configured as in transformers.
TEST(ChatTemplate, RendersAsJinja2Does) {
  const Json file = parse_json(read_file(BASED_SOURCE_DIR "/tests/serve/templates/cases.json"), "cases.json");
  ASSERT_GT(file["cases"].size(), 100U);
  for (const Json& test : file["cases"]) {
    const auto source = test["template"].get<std::string>();
    EXPECT_EQ(ChatTemplate::parse(source, "case").render(file["messages"], file["variables"]), test["output"]) << source;
  }
}

TEST(ChatTemplate, ErrorsNameFileLineAndColumn) {
  EXPECT_THAT(error_of("a\n{% if x %}"), StartsWith("t.jinja:2:1: this tag has no 'endif'"));
  EXPECT_THAT(error_of("\u00e9 {{ 1 + }}"), StartsWith("t.jinja:1:10: expected an expression"));
  EXPECT_THAT(error_of("{{ a.b }}"), StartsWith("t.jinja:1:5: 'a' is undefined"));
  EXPECT_THAT(error_of("\r\n\r\n{{ 1 // 0 }}"), StartsWith("t.jinja:3:6: division by zero"));
  EXPECT_THAT(error_of("{% macro a() %}"), StartsWith("t.jinja:1:1: the tag 'macro' is not supported"));
  EXPECT_THAT(error_of("{{ 'a' | nope }}"), StartsWith("t.jinja:1:8: the filter 'nope'"));
  EXPECT_THAT(error_of("{{ 'a'.__class__() }}"), HasSubstr("the method '__class__' is not supported"));
  EXPECT_THAT(error_of("{{ open('f') }}"), HasSubstr("the function 'open' is not supported"));
  EXPECT_EQ(error_of("\n {{ raise_exception('roles must ' ~ 'alternate') }}"), "t.jinja:2:5: roles must alternate");
  EXPECT_THAT(error_of("{% break %}"), HasSubstr("outside of a loop"));
  EXPECT_THAT(error_of("{{ 9223372036854775807 + 1 }}"), HasSubstr("out of range"));
}

TEST(ChatTemplate, AFaultOfTheFileIsFoundWhenItIsRead) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("bad.jinja"), "{{ messages | sort }}");
  EXPECT_THROW(ChatTemplate::load(folder.file("bad.jinja")), Error);
  EXPECT_THROW(ChatTemplate::load(folder.file("missing.jinja")), Error);
  write_file_atomic(folder.file("good.jinja"), "{{ raise_exception('no') }}");
  EXPECT_THROW(ChatTemplate::load(folder.file("good.jinja")).render(no_messages(), Json::object()), TemplateRenderError);
}

TEST(ChatTemplate, LimitsOfDepth) {
  const auto nested = [](const char* open, const char* close, int times) {
    std::string text = "{{ ";
    for (int i = 0; i < times; ++i) text += open;
    text += "1";
    for (int i = 0; i < times; ++i) text += close;
    return text + " }}";
  };
  EXPECT_EQ(rendered(nested("(", ")", 40)), "1");
  const std::vector<std::pair<const char*, const char*>> forms{{"(", ")"},  {"[", "]"},      {"not ", ""},         {"-", ""},
                                                               {"x[", "]"}, {"{'a': ", "}"}, {"1 if 1 else ", ""}, {"x|default(", ")"}};
  for (const auto& [open, close] : forms) EXPECT_THAT(error_of(nested(open, close, 100'000)), HasSubstr("nested")) << open;
  std::string statements;
  for (int i = 0; i < 100'000; ++i) statements += "{% if 1 %}";
  EXPECT_THAT(error_of(statements), HasSubstr("nested"));
  EXPECT_THAT(error_of("{% set n = namespace(x=[]) %}{% for i in range(70) %}{% set n.x = [n.x] %}{% endfor %}"),
              HasSubstr("nests more than 64"));
  EXPECT_THAT(error_of("{% set n = namespace() %}{% set n.n = n %}"), HasSubstr("cannot be an attribute"));
  // Long chains do not nest.
  std::string sum = "{{ 0", chain = "{{ 'a'";
  for (int i = 0; i < 20'000; ++i) sum += "+1", chain += "|trim";
  EXPECT_EQ(rendered(sum + " }}"), "20000");
  EXPECT_EQ(rendered(chain + " }}"), "a");
}

TEST(ChatTemplate, LimitsOfStepsAndOutput) {
  EXPECT_THAT(error_of("{% for i in range(10000000000) %}{% endfor %}"), HasSubstr("more than 1000000 steps"));
  EXPECT_THAT(error_of("{% for i in range(2000) %}{% for k in range(2000) %}{% endfor %}{% endfor %}"), HasSubstr("steps"));
  EXPECT_THAT(error_of("{{ 'ab' * 10000000 }}"), HasSubstr("larger than 16777216 bytes"));
  EXPECT_THAT(error_of("{{ [1] * 100000000 }}"), HasSubstr("too long"));
  EXPECT_THAT(error_of("{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}"),
              AnyOf(HasSubstr("larger than"), HasSubstr("steps")));
  EXPECT_THAT(error_of("{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}"), HasSubstr("steps"));
  EXPECT_EQ(rendered("{{ 'a' * 8 }}", no_messages(), {.output_bytes = 8}), "aaaaaaaa");
  EXPECT_THAT(error_of("b{{ 'a' * 8 }}", {.output_bytes = 8}), HasSubstr("the prompt is larger than 8 bytes"));
  EXPECT_THAT(error_of("{{ 1 }}", {.steps = 1}), HasSubstr("more than 1 steps"));
}

}  // namespace chat_template_test
}  // namespace based
