#include "based/experiments/axes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/temporary_folder.h"

namespace based {
namespace axes_test {

using ::testing::HasSubstr;

Config toml(const std::string& text) { return Config::parse_toml(text, "test.toml"); }

std::string refusal(const std::string& text) {
  return message_of<UsageError>([&] { expand_axes(toml(text)); });
}

TEST(Axes, ListsAreAxesAndLayersAreNot) {
  const auto points = expand_axes(toml("d_model = [16, 32]\nlayers = [\"a\", \"b\"]\nmixers.a = {type = [\"x\", \"y\"], n = 3}"));
  ASSERT_EQ(points.size(), 4U);
  EXPECT_EQ(points[0].label, "d_model=16 type=x");
  EXPECT_EQ(points[3].label, "d_model=32 type=y");
  EXPECT_EQ(points[3].model.to_json(-1), R"({"d_model":32,"layers":["a","b"],"mixers":{"a":{"type":"y","n":3}}})");
}

TEST(Axes, ATiedKeyIsComputedFromAnotherOfItsPoint) {
  const auto points =
      expand_axes(toml("d_model = [16, 32]\nmixers.a = {half = \"= d_model / 2\", more = \"=half*3\", n = \"= mixers.b.n - 1\"}\n"
                       "mixers.b = {n = 5, d_model = 7, own = \"= d_model + 1\"}"));
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[1].label, "d_model=32");
  EXPECT_EQ(points[1].model.to_json(-1), R"({"d_model":32,"mixers":{"a":{"half":16,"more":48,"n":4},"b":{"n":5,"d_model":7,"own":8}}})");
}

TEST(Axes, AnAxisMayHaveTiesAmongItsValues) {
  const auto points = expand_axes(toml("d = 8\nn = [2, \"= d\"]"));
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[1].label, "n=8");
}

TEST(Axes, WhatCannotBeIsNamed) {
  EXPECT_THAT(refusal("a.b = []"), HasSubstr("test.toml:1: model.a.b is an empty list"));
  EXPECT_THAT(refusal("a = [[1]]"), HasSubstr("model.a is an axis: its values must be single ones"));
  EXPECT_THAT(refusal("d = 5\nn = \"= d / 2\""), HasSubstr("test.toml:2: model.n = '= d / 2': 5 / 2 is no integer"));
  EXPECT_THAT(refusal("d = 5\nn = \"= d / 0\""), HasSubstr("5 / 0 is no integer"));
  EXPECT_THAT(refusal("n = \"= m\""), HasSubstr("the model has no key 'm' here"));
  EXPECT_THAT(refusal("m = 0.5\nn = \"= m\""), HasSubstr("m is no integer"));
  EXPECT_THAT(refusal("n = \"= n * 2\""), HasSubstr("it is tied to itself"));
  EXPECT_THAT(refusal("a = \"= b\"\nb = \"= a\""), HasSubstr("it is tied to itself"));
  EXPECT_THAT(refusal("d = 2\nn = \"= d ^ 2\""), HasSubstr("a tie is \"= KEY\""));
  EXPECT_THAT(refusal("d = 9000000000000000000\nn = \"= d * 2\""), HasSubstr("does not fit into 64 bits"));
  std::string many = "a = [0";
  for (int i = 1; i < 101; ++i) many += "," + std::to_string(i);
  EXPECT_THAT(refusal(many + "]\nb" + many.substr(1) + "]"), HasSubstr("more than 10000 points"));
}

// A tie of any length is read without a stack frame for each of its characters.
TEST(Axes, ALongTieIsReadOrRefused) {
  const std::string name(1'000'000, 'a'), spaces(1'000'000, ' ');
  EXPECT_THAT(refusal("n = \"= " + name + "\""), HasSubstr("the model has no key 'aaaa"));
  EXPECT_THAT(refusal("n = \"= " + name + " / 2\""), HasSubstr("the model has no key 'aaaa"));
  EXPECT_THAT(refusal("n = \"= " + name + "-\""), HasSubstr("a tie is \"= KEY\""));
  EXPECT_THAT(refusal("n = \"= " + name + "\"\n" + name + " = 0.5"), HasSubstr("is no integer"));
  EXPECT_THAT(refusal("d = 2\nn = \"= d * " + std::string(1'000'000, '1') + "\""), HasSubstr("a tie is \"= KEY\""));
  EXPECT_THAT(refusal("n = \"= " + std::string(1'000'000, '.') + "\""), HasSubstr("a tie is \"= KEY\""));
  EXPECT_EQ(expand_axes(toml("d = 6\nn = \"=" + spaces + "d" + spaces + "/" + spaces + "2" + spaces + "\""))[0].model.to_json(-1),
            R"({"d":6,"n":3})");
}

TEST(Axes, ATieHasOneForm) {
  for (const char* tie :
       {"=", "= ", "= 4", "= d d", "= d 2", "= d / ", "= d / x", "= d / 1234567890", "= d / 2 2", "= d / -2", "= .d", "= /2", "= d\\u00a0"})
    EXPECT_THAT(refusal("d = 6\nn = \"" + std::string(tie) + "\""), HasSubstr("a tie is \"= KEY\"")) << tie;
  EXPECT_EQ(expand_axes(toml("_d.E1 = 6\nn = \"=\\t_d.E1-007 \""))[0].model.to_json(-1), R"({"_d":{"E1":6},"n":-1})");
}

TEST(Axes, MoreListsThanAnyModelHasAreRefused) {
  std::string lists;
  for (int i = 0; i < 20'000; ++i) lists += "a" + std::to_string(i) + " = [1]\n";
  EXPECT_THAT(refusal(lists), HasSubstr("a series' model has more than 64 lists"));
}

TEST(Axes, WhatIsUsualIsLeftOut) {
  EXPECT_EQ(without_defaults(toml("a = 1\nb = 2\nt = {c = 3, d = 4}"), toml("a = 1\nb = 1\nt = {c = 3, d = 0}")).to_json(-1),
            R"({"b":2,"t":{"d":4}})");
}

}  // namespace axes_test
}  // namespace based
