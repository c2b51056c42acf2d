#include "based/core/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "temporary_folder.h"

namespace based {
namespace config_test {

using ::testing::ElementsAre;
using ::testing::StartsWith;

struct OptimizerConfig {
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.95};
  template <class Visitor>
  void visit(Visitor&& field) {
    field("lr", lr, "peak learning rate");
    field("betas", betas, "decay rates of the moments");
  }
};

struct TrainConfig {
  int64_t steps = 100;
  bool resume = false;
  OptimizerConfig optimizer;
  std::vector<OptimizerConfig> stages;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("steps", steps, "optimizer steps");
    field("resume", resume, "continue from the last checkpoint");
    field("optimizer", optimizer, "AdamW");
    field("stages", stages, "one after another");
  }
};

struct RunConfig {
  std::string name = "run";
  TrainConfig train;
  Config free;
  std::map<std::string, Config> mixers;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("name", name, "name of the run");
    field("train", train, "training");
    field("free", free, "any keys");
    field("mixers", mixers, "options by mixer");
  }
};

RunConfig read_toml(const std::string& text) { return read_config<RunConfig>(Config::parse_toml(text, "run.toml")); }

TEST(Config, ReadsEveryKindOfField) {
  const RunConfig run = read_toml(R"(name = "mqar"
free = {list = [1, "two", 3.5, {x = true}]}
[train]
steps = 20
resume = true
optimizer.lr = 1
optimizer.betas = [0.5, 1]
[[train.stages]]
lr = 0.5
[[train.stages]]
betas = []
[mixers.taylor]
feature_dim = 16
[mixers.window]
)");
  EXPECT_EQ(run.name, "mqar");
  EXPECT_EQ(run.free.to_json(-1), R"({"list":[1,"two",3.5,{"x":true}]})");
  EXPECT_EQ(run.train.steps, 20);
  EXPECT_TRUE(run.train.resume);
  EXPECT_EQ(run.train.optimizer.lr, 1.0);
  EXPECT_THAT(run.train.optimizer.betas, ElementsAre(0.5, 1.0));
  ASSERT_EQ(run.train.stages.size(), 2u);
  EXPECT_EQ(run.train.stages[0].lr, 0.5);
  EXPECT_TRUE(run.train.stages[1].betas.empty());
  ASSERT_EQ(run.mixers.size(), 2u);
  EXPECT_EQ(run.mixers.at("taylor").to_json(-1), R"({"feature_dim":16})");
}

TEST(Config, AbsentFieldsKeepTheirDefaults) {
  const RunConfig run = read_toml("");
  EXPECT_EQ(run.train.steps, 100);
  EXPECT_THAT(run.train.optimizer.betas, ElementsAre(0.9, 0.95));
  EXPECT_EQ(read_config<TrainConfig>(Config()).steps, 100) << "no configuration at all";
}

TEST(Config, WrittenThenReadIsTheSame) {
  RunConfig run = read_toml("free = {a = [1, 2.5]}\n[train]\nsteps = 7\n[[train.stages]]\nlr = 0.25\n[mixers.m]\nx = 1");
  const std::string json = write_config(run).to_json();
  const RunConfig again = read_config<RunConfig>(Config::parse_json(json, "config.json"));
  EXPECT_EQ(write_config(again).to_json(), json);
  EXPECT_EQ(again.train.stages.at(0).lr, 0.25);
}

TEST(Config, KeepsTheOrderWritten) {
  const char* toml = "z = 1\na = 2\n[m]\ny = 1\nb = 2\n[k]\n";
  EXPECT_EQ(Config::parse_toml(toml, "t").to_json(-1), R"({"z":1,"a":2,"m":{"y":1,"b":2},"k":{}})");
  const char* json = R"({"z":1,"a":{"y":1,"b":2}})";
  EXPECT_EQ(Config::parse_json(json, "t").to_json(-1), json);
}

TEST(Config, HelpNamesEveryFieldWithItsDefault) {
  const std::vector<FieldHelp> help = config_help<TrainConfig>();
  ASSERT_EQ(help.size(), 5u);
  EXPECT_EQ(help[0].name, "steps");
  EXPECT_EQ(help[0].type, "integer");
  EXPECT_EQ(help[0].default_value, "100");
  EXPECT_EQ(help[0].help, "optimizer steps");
  EXPECT_EQ(help[3].name, "optimizer.betas");
  EXPECT_EQ(help[3].type, "list of number");
  EXPECT_EQ(help[3].default_value, "[0.9,0.95]");
}

struct BadConfig {
  const char* text;
  const char* message;
};

TEST(Config, ErrorsNameFileLineFieldAndWhatIsNear) {
  const BadConfig cases[] = {
      {"[train]\nresume = true\nstpes = 3", "run.toml:3: unknown key 'stpes' in [train]; did you mean 'steps'?"},
      {"nmae = 'x'", "run.toml:1: unknown key 'nmae'; did you mean 'name'?"},
      {"[train.optimizer]\n\nmomentum = 1", "run.toml:3: unknown key 'momentum' in [train.optimizer]; known keys: lr, betas"},
      {"[[train.stages]]\nlr = 1\n[[train.stages]]\nlrr = 2", "run.toml:4: unknown key 'lrr' in [train.stages[1]]; did you mean 'lr'?"},
      {"[train]\nsteps = 'many'", "run.toml:2: 'train.steps' must be an integer, not the string 'many'"},
      {"[train]\nsteps = 2.5", "run.toml:2: 'train.steps' must be an integer, not the number 2.5"},
      {"[train]\nresume = 1", "run.toml:2: 'train.resume' must be true or false, not the integer 1"},
      {"name = 3", "run.toml:1: 'name' must be a string, not the integer 3"},
      {"train = 3", "run.toml:1: 'train' must be a table, not the integer 3"},
      {"[train.optimizer]\nlr = true", "run.toml:2: 'train.optimizer.lr' must be a number, not true"},
      {"[train.optimizer]\nbetas = 0.9", "run.toml:2: 'train.optimizer.betas' must be a list, not the number 0.9"},
      {"[train.optimizer]\nbetas = [\n0.9,\n'x']", "run.toml:4: 'train.optimizer.betas[1]' must be a number, not the string 'x'"},
      {"mixers = []", "run.toml:1: 'mixers' must be a table, not a list"},
      {"free = 1979-05-27", "run.toml:1: dates and times are not used here; write a string in quotes"},
  };
  for (const BadConfig& bad : cases) {
    EXPECT_EQ(message_of<UsageError>([&] { read_toml(bad.text); }), bad.message) << bad.text;
  }
}

TEST(Config, RefusesBrokenToml) {
  const BadConfig cases[] = {
      {"a = 1\nb = ", "run.toml:2: not valid TOML: "},
      {"a = 1\na = 2", "run.toml:2: not valid TOML: "},
      {"a = \"\xff\"", "run.toml:1: not valid TOML: "},
      {"a = 99999999999999999999", "run.toml:1: not valid TOML: "},
      {"a = [1", "run.toml:1: not valid TOML: "},
      {"\nd\xc3\xa9"
       "bit = 1",
       "run.toml:2: not valid TOML: "},
      {"a = 1\xc2\xa0", "run.toml:1: not valid TOML: "},
      {"a = [4\"x\xc3\x8d", "run.toml:1: not valid TOML: "},
      {"a = 9B[[{\"d\xef\xb7\xbf", "run.toml:1: not valid TOML: "},
      {"[[[", "run.toml: not valid TOML: "},
      {"[[[a]]]", "run.toml: not valid TOML: "},
      {"\n\na.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r = 1", "run.toml:3: a key of more than 17 parts"},
  };
  for (const BadConfig& bad : cases) {
    EXPECT_THAT(message_of<UsageError>([&] { Config::parse_toml(bad.text, "run.toml"); }), StartsWith(bad.message)) << bad.text;
  }
}

TEST(Config, TomlStringsAndCommentsMayHoldAnyText) {
  const char* text = "\xef\xbb\xbf# caf\xc3\xa9\nname = \"\xd0\x92\" # \xd0\x92\n'\xd0\x92' = '''\n\xe2\x80\x82'''";
  EXPECT_EQ(Config::parse_toml(text, "run.toml").to_json(-1), "{\"name\":\"\xd0\x92\",\"\xd0\x92\":\"\xe2\x80\x82\"}");
}

TEST(Config, DeepNestingIsAnErrorAndNotAStackOverflow) {
  const int deep = 100'000;
  std::string dotted = "a";
  for (int i = 0; i < deep; ++i) dotted += ".a";
  const std::string arrays = std::string(deep, '['), json_arrays = "{\"a\":" + arrays;
  EXPECT_THROW(Config::parse_toml("[" + dotted + "]", "t"), UsageError);
  EXPECT_THROW(Config::parse_toml(dotted + " = 1", "t"), UsageError);
  EXPECT_THROW(Config::parse_toml("s = '''x''''\n" + dotted + " = 1", "t"), UsageError) << "a quote before the closing three";
  EXPECT_THROW(Config::parse_toml("x = " + arrays, "t"), UsageError);
  EXPECT_THROW(Config::parse_json(json_arrays, "t"), Error);
  EXPECT_NO_THROW(Config::parse_toml("x = '" + dotted + "' # " + dotted, "t")) << "dots in strings and comments are harmless";
}

TEST(Config, JsonErrorsNameFileAndPath) {
  const auto read_json = [](const char* text) {
    return message_of<Error>([&] { read_config<RunConfig>(Config::parse_json(text, "config.json")); });
  };
  EXPECT_EQ(read_json(R"({"train":{"stpes":1}})"), "config.json: train.stpes: unknown key 'stpes' in [train]; did you mean 'steps'?");
  EXPECT_EQ(read_json(R"({"train":{"stages":[{"lr":"x"}]}})"),
            "config.json: train.stages[0].lr: 'train.stages[0].lr' must be a number, not the string 'x'");
  EXPECT_EQ(read_json(R"({"train":{"steps":9223372036854775808}})"),
            "config.json: train.steps: the number does not fit into 64 bits with a sign");
  EXPECT_EQ(read_json(R"([])"), "config.json: this must be a table, not a list");
}

TEST(Config, Overrides) {
  Config config = Config::parse_toml("[train]\nsteps = 1\n[[train.stages]]\nlr = 1.0", "run.toml");
  for (const char* set : {"train.steps=200", "name=hello world", "train.optimizer.betas=[0.1, 0.2]", "train.stages.0.lr=5",
                          "mixers.new.x=1", "free.x=a=b", "train.resume=true"}) {
    config.override_with(set);
  }
  const RunConfig run = read_config<RunConfig>(config);
  EXPECT_EQ(run.train.steps, 200);
  EXPECT_EQ(run.name, "hello world");
  EXPECT_THAT(run.train.optimizer.betas, ElementsAre(0.1, 0.2));
  EXPECT_EQ(run.train.stages.at(0).lr, 5.0);
  EXPECT_EQ(run.mixers.at("new").to_json(-1), R"({"x":1})");
  EXPECT_EQ(run.free.to_json(-1), R"({"x":"a=b"})");
  EXPECT_TRUE(run.train.resume);
}

TEST(Config, OverrideErrorsNameTheFlag) {
  const auto error = [](const char* set) {
    Config config = Config::parse_toml("[train]\nsteps = 1\n[[train.stages]]\nlr = 1.0", "run.toml");
    return message_of<UsageError>([&] {
      config.override_with(set);
      read_config<RunConfig>(config);
    });
  };
  EXPECT_EQ(error("train.stesp=1"), "--set train.stesp=1: unknown key 'stesp' in [train]; did you mean 'steps'?");
  EXPECT_EQ(error("train.steps=x"), "--set train.steps=x: 'train.steps' must be an integer, not the string 'x'");
  EXPECT_EQ(error("train.steps"), "--set train.steps: write KEY=VALUE, for example train.steps=200");
  EXPECT_EQ(error("=3"), "--set =3: write KEY=VALUE, for example train.steps=200");
  EXPECT_EQ(error("train..x=3"), "--set train..x=3: key 'train..x' has an empty part");
  EXPECT_EQ(error("train.steps.x=3"), "--set train.steps.x=3: cannot set 'train.steps.x': 'train.steps' is a single value, not a table");
  EXPECT_EQ(error("train.stages.1.lr=3"),
            "--set train.stages.1.lr=3: cannot set 'train.stages.1.lr': 'train.stages' is a list of 1, and '1' is no index into it");
  EXPECT_EQ(error("name=1\nfree=2"), "") << "a line break does not start another key: the whole text is the value";
}

TEST(Config, ATableThatIsNoneIsNamed) {
  Config config;
  config.override_with("free=5");
  EXPECT_EQ(message_of<UsageError>([&] { read_config<RunConfig>(config); }), "--set free=5: 'free' must be a table, not the integer 5");
}

TEST(Config, WhatIsWrongInAStoredFileIsNoWrongUsage) {
  try {
    read_stored([] { return read_toml("nmae = 1"); });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    ADD_FAILURE() << error.what();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "run.toml:1: unknown key 'nmae'; did you mean 'name'?");
  }
}

TEST(Config, FilesAreNamedWhereTheyCannotBeRead) {
  EXPECT_EQ(message_of<Error>([] { Config::parse_toml_file("/nonexistent/run.toml"); }),
            "/nonexistent/run.toml: cannot open: No such file or directory");
}

TEST(Config, FilesWithoutEndAreNotReadToIt) {
  EXPECT_EQ(message_of<Error>([] { Config::parse_toml_file("/dev/zero"); }),
            "/dev/zero: longer than the 16777216 bytes that are read of it at most");
  EXPECT_EQ(message_of<Error>([] { Config::parse_json_file("/dev/zero"); }), "/dev/zero: not a regular file");
}

TEST(Config, NearestWordIsNearEnough) {
  const std::vector<std::string> known = {"steps", "lr", "window"};
  EXPECT_EQ(nearest("stpes", known), "steps");
  EXPECT_EQ(nearest("windows", known), "window");
  EXPECT_EQ(nearest("l", known), "lr");
  EXPECT_EQ(nearest("temperature", known), "");
  EXPECT_EQ(nearest("x", {}), "");
}

TEST(Config, ValuesThatJsonLacksBecomeNull) {
  EXPECT_EQ(Config(std::nan("")).to_json(-1), "null");
  EXPECT_EQ(Config::parse_toml("x = inf", "t").to_json(-1), R"({"x":null})");
}

}  // namespace config_test
}  // namespace based
