#include "weft/text/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

namespace weft {
namespace {

using nlohmann::ordered_json;

const std::string kData = WEFT_SOURCE_DIR "/tests/data/";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool exists(const std::string& path) { return std::ifstream(path).good(); }

std::tm read_time(const std::string& iso) {
  std::tm t{};
  EXPECT_EQ(std::sscanf(iso.c_str(), "%d-%d-%dT%d:%d:%d", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour, &t.tm_min, &t.tm_sec),
            6);
  t.tm_year -= 1900;
  t.tm_mon -= 1;
  return t;
}

ChatTemplate::Inputs inputs_of(const ordered_json& test) {
  ChatTemplate::Inputs in;
  in.messages = test["messages"];
  in.tools = test.value("tools", ordered_json());
  in.documents = test.value("documents", ordered_json());
  in.add_generation_prompt = test["add_generation_prompt"];
  in.continue_final_message = test.value("continue_final_message", false);
  in.extra = test.value("extra", ordered_json());
  if (test.contains("now")) in.now = read_time(test["now"]);
  return in;
}

int64_t code_points(const std::string& text, int64_t bytes) {
  int64_t n = 0;
  for (int64_t i = 0; i < bytes; ++i) n += (static_cast<unsigned char>(text[static_cast<size_t>(i)]) & 0xC0) != 0x80;
  return n;
}

TEST(ChatTemplate, RendersEveryGolden) {
  ordered_json cases = parse_template_json(read_file(kData + "chat_templates/cases.json"));
  int64_t rendered = 0, failed = 0, broken = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const ordered_json& test = cases[i];
    std::string name = test["template"];
    SCOPED_TRACE("case " + std::to_string(i) + ", template " + name);
    std::string source = read_file(kData + "chat_templates/" + name + ".jinja");
    if (name.starts_with("broken_")) {
      EXPECT_THROW(ChatTemplate::compile(source, name), TemplateError);
      ++broken;
      continue;
    }
    ChatTemplate chat = ChatTemplate::compile(source, name);
    try {
      auto out = chat.render(inputs_of(test));
      ++rendered;
      if (!test.contains("expected")) {
        ADD_FAILURE() << "rendered instead of: " << test["error"];
        continue;
      }
      EXPECT_EQ(out.text, test["expected"].get<std::string>());
      if (test.contains("generation")) {
        ordered_json spans = ordered_json::array();
        for (auto [begin, end] : out.generation_spans) {
          spans.push_back({code_points(out.text, begin), code_points(out.text, end)});
        }
        EXPECT_EQ(spans, test["generation"]);
      }
    } catch (const TemplateError& error) {
      ++failed;
      if (!test.contains("error")) {
        ADD_FAILURE() << error.what();
        continue;
      }
      if (test["error"]["type"] == "TemplateError") {
        EXPECT_EQ(error.message(), test["error"]["message"].get<std::string>());
      }
      EXPECT_GE(error.line(), 1);
      EXPECT_GE(error.column(), 1);
    }
  }
  EXPECT_EQ(broken, 7);
  EXPECT_EQ(rendered + failed + broken, 189);
  EXPECT_GE(failed, 20);
}

std::string template_of(const std::string& folder, const std::string& name) {
  std::string path = kData + "tokenizers/" + folder + "/";
  if (name != "default") {
    std::string extra = path + "additional_chat_templates/" + name + ".jinja";
    if (exists(extra)) return read_file(extra);
  } else if (exists(path + "chat_template.jinja")) {
    return read_file(path + "chat_template.jinja");
  }
  ordered_json in_config = ordered_json::parse(read_file(path + "tokenizer_config.json"))["chat_template"];
  if (in_config.is_string()) return in_config;
  for (const auto& entry : in_config) {
    if (entry["name"] == name) return entry["template"];
  }
  ADD_FAILURE() << folder << " has no template " << name;
  return "";
}

TEST(ChatTemplate, RendersThePromptsOfTheTokenizerFolders) {
  int64_t count = 0;
  for (std::string folder : {"llama3", "qwen", "o200k", "mistral", "llama2", "deepseek_v3"}) {
    ordered_json config = ordered_json::parse(read_file(kData + "tokenizers/" + folder + "/tokenizer_config.json"));
    std::map<std::string, std::string> special;
    for (const auto& [key, value] : config.items()) {
      if (!key.ends_with("_token") || key.starts_with("add_")) continue;
      if (value.is_string()) special[key] = value;
      if (value.is_object()) special[key] = value["content"];
    }
    for (const auto& test : ordered_json::parse(read_file(kData + "tokenizers/" + folder + "/prompts.json"))) {
      SCOPED_TRACE(folder + " prompt " + std::to_string(count));
      std::string name = test["template"].is_null() ? "default" : test["template"].get<std::string>();
      auto in = inputs_of(test);
      in.special_tokens = special;
      EXPECT_EQ(ChatTemplate::compile(template_of(folder, name), folder).render(in).text, test["text"].get<std::string>());
      ++count;
    }
  }
  EXPECT_EQ(count, 23);
}

std::string render(const std::string& source, ordered_json extra = ordered_json::object()) {
  ChatTemplate::Inputs in;
  in.messages = ordered_json::parse(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}])");
  in.extra = std::move(extra);
  return ChatTemplate::compile(source, "t").render(in).text;
}

std::string error_of(const std::string& source) {
  try {
    return "rendered: " + render(source);
  } catch (const TemplateError& error) {
    return error.what();
  }
}

TEST(ChatTemplate, ErrorsTellLineAndColumn) {
  EXPECT_EQ(error_of("a\n  {{ 'x' | nope }}"), "t:2:12: no filter named 'nope'");
  EXPECT_EQ(error_of("{{ 1 is nope }}"), "t:1:9: no test named 'nope'");
  for (const std::string index : {"-5:, 3", "1, 2:", ":, :"})
    EXPECT_THAT(error_of("{{ 'abc'[" + index + "] }}"), testing::HasSubstr("a slice among several indices")) << index;
  EXPECT_EQ(error_of("a\nb {{ missing.x }}"), "t:2:13: 'missing' is undefined");
  EXPECT_EQ(error_of("\n\n {{ raise_exception('no ' ~ 1) }}"), "t:3:20: no 1");
  EXPECT_EQ(error_of("{% if true %}"),
            "t:1:4: the block 'if' that starts here is never closed; expected 'elif' or 'else' or 'endif'");
  EXPECT_EQ(error_of("x {% include 'a' %}"), "t:1:6: the tag 'include' is not supported in chat templates");
  EXPECT_EQ(error_of("{{ 'a' | urlencode }}"), "t:1:10: the filter 'urlencode' is not supported");
  EXPECT_EQ(error_of("{% break %}"), "t:1:4: 'break' stands outside of a loop");
  EXPECT_EQ(error_of("{{ 'a\n }}"), "t:1:4: the string that starts here has no closing '");
  EXPECT_EQ(error_of("{{ (1] }}"), "t:1:6: unexpected ']', expected ')'");
  EXPECT_EQ(error_of("{{ x\n"), "t:1:1: the tag that starts here has no '}}'");
}

// Each would render to something else, or to nothing, if it were taken for undefined or ignored.
TEST(ChatTemplate, RefusesWhatItDoesNotKnow) {
  const char* sources[] = {"{% block x %}{% endblock %}",
                           "{% extends 'x' %}",
                           "{% do 1 %}",
                           "{% autoescape true %}{% endautoescape %}",
                           "{{ 'a'.translate({}) }}",
                           "{{ messages.append(1) }}",
                           "{{ messages[0].pop('role') }}",
                           "{{ messages[0].update }}",
                           "{{ ''.__class__ }}",
                           "{{ ''['__class__'] }}",
                           "{{ (1).real }}",
                           "{{ messages | map(attribute='role') }}",
                           "{{ range(3) }}",
                           "{{ namespace(a=1) }}",
                           "{{ range }}",
                           "{{ loop.index }}",
                           "{% for x in [1] %}{{ loop }}{% endfor %}",
                           "{{ joiner(',') }}",
                           "{{ 'x' | random }}",
                           "{{ '\\N{SNOWMAN}' }}",
                           "{{ '\\ud83d\\ude00' }}",
                           "{{ 12345678901234567890123 + 1 }}",
                           "{{ 9223372036854775807 * 9223372036854775807 + 1 }}",
                           "{{ ('<' | e).replace('a', 'b') }}",
                           "{{ 'a' is sameas 'a' }}",
                           "{{ 1 | tojson(nope=1) }}",
                           "{{ strftime_now('%c') }}",
                           "{{ ['b'] | sort(attribute='a,b') }}",
                           "{{ 'a'.split('a', 'b') }}",
                           "{% set x.y = 1 %}",
                           "{% set true = 1 %}",
                           "{{ 1 if }}",
                           "{{ f(a=1, 2) }}",
                           "{{ 007 }}",
                           "{{ a b }}",
                           "{{ \xc3\xa9 }}",
                           "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
                           "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
                           "{% set x %}{% generation %}a{% endgeneration %}{% endset %}",
                           "{% for a, b in [1] %}{% endfor %}",
                           "{{ {[1]: 2} }}",
                           "{{ 'a' % 1 }}",
                           "{{ '%s %s' % ('a',) }}",
                           "{{ '{}'.format() }}",
                           "{{ none[1:] }}",
                           "{{ none.x.y }}",
                           "{{ -'a' }}",
                           "{{ [1] + (2,) }}",
                           "{{ [3, 'a'] | sort }}",
                           "{{ messages | map(attribute='role') | length }}"};
  for (const char* source : sources) EXPECT_THROW(render(source), TemplateError) << source;
}

TEST(ChatTemplate, HostileTemplatesEndInAnError) {
  auto repeat = [](const std::string& s, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += s;
    return out;
  };
  const std::string sources[] = {
      "{{ " + repeat("(", 50000) + " }}",
      "{{ " + repeat("[", 50000) + repeat("]", 50000) + " }}",
      "{{ " + repeat("not ", 50000) + "1 }}",
      "{{ " + repeat("-", 50000) + "1 }}",
      "{{ 1" + repeat(" + 1", 50000) + " }}",
      "{{ a" + repeat(".a", 50000) + " }}",
      "{{ 1" + repeat(" if 1 else 1", 50000) + " }}",
      repeat("{% if 1 %}", 50000),
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ 'a' * 100000000000 }}",
      "{{ [0] * 100000000000 }}",
      "{{ 'a' | center(100000000000) }}",
      "{{ '%99999999999d' % 1 }}",
      "{{ '{:99999999999}'.format(1) }}",
      "{{ 'a\\nb' | indent(99999999999) }}",
      "{{ range(100000000) | list }}",
      "{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(1000) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(1000) %}{% set ns.s = [ns.s] %}{% endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(90) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(1000) %}{% set ns.s = ns.s.count %}{% set ns.s = [ns.s] %}{% endfor %}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{% for i in range(100000) %}{{ 'aaaaaaaaaaaaaaaa' * 1000 }}{% endfor %}",
  };
  for (const std::string& source : sources) {
    ChatTemplate::Inputs in;
    in.messages = ordered_json::array();
    in.max_output_bytes = 1 << 20;
    in.max_work = 400'000;
    EXPECT_THROW(ChatTemplate::compile(source, "t").render(in), TemplateError) << source.substr(0, 100);
  }
}

TEST(ChatTemplate, CyclesThroughNamespacesAndMacrosAreFreed) {
  EXPECT_EQ(
      render("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a.b.a.b is defined }}"
             "{% macro m() %}x{% endmacro %}{% set a.m = m %}{{ a.m() }}{% for i in [1] %}{% set a.l = loop %}{% endfor %}"),
      "Truex");
}

TEST(ChatTemplate, KeepsIntegersOfAnySize) {
  ordered_json extra =
      parse_template_json(R"({"n": 123456789012345678901234567890, "m": -99999999999999999999, "u": 18446744073709551615})");
  EXPECT_EQ(render("{{ n }} {{ m | tojson }} {{ u }} {{ n > m }} {{ n == n + 0.5 }} {{ [n] | tojson }} {{ -n }}", extra),
            "123456789012345678901234567890 -99999999999999999999 18446744073709551615 True False "
            "[123456789012345678901234567890] -123456789012345678901234567890");
  EXPECT_EQ(render("{{ 9223372036854775807 + 1 }} {{ -9223372036854775808 // -1 }} {{ 2 ** 100 }}"),
            "9223372036854775808 9223372036854775808 1267650600228229401496703205376");
}

TEST(ChatTemplate, IteratorsAreSpentOnce) {
  EXPECT_EQ(render("{% set r = messages | map(attribute='role') %}{{ r | first }}{{ r | list }}{{ r | list }}{{ not r }}"),
            "user['assistant'][]False");
}

TEST(ChatTemplate, ContinuesTheFinalMessage) {
  ChatTemplate::Inputs in;
  in.messages = ordered_json::parse(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So "}])");
  in.continue_final_message = true;
  EXPECT_EQ(ChatTemplate::compile("{% for m in messages %}<{{ m.content }}>{% endfor %}", "t").render(in).text, "<Hi><So ");
  EXPECT_EQ(ChatTemplate::compile("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", "t").render(in).text, "<Hi><So");
  EXPECT_THROW(ChatTemplate::compile("{{ messages[0].content }}", "t").render(in), ValueError);
  in.messages[1]["content"] = ordered_json::parse(R"([{"type": "text", "text": "A"}, {"type": "image"}])");
  EXPECT_EQ(ChatTemplate::compile("{{ messages[1].content[0].text }}!", "t").render(in).text, "A");
  in.messages[1]["content"] = nullptr;
  EXPECT_THROW(ChatTemplate::compile("x", "t").render(in), ValueError);
  in.messages = ordered_json::array();
  EXPECT_THROW(ChatTemplate::compile("x", "t").render(in), ValueError);
}

TEST(ChatTemplate, RefusesInputsThatDoNotFit) {
  ChatTemplate chat = ChatTemplate::compile("{{ x }}", "t");
  ChatTemplate::Inputs in;
  EXPECT_THROW(chat.render(in), ValueError);
  in.messages = ordered_json::array();
  in.extra = ordered_json::array();
  EXPECT_THROW(chat.render(in), ValueError);
  in.extra = {{"x", "\xff"}};
  EXPECT_THROW(chat.render(in), ValueError);
  ordered_json deep;
  for (int i = 0; i < 1000; ++i) deep = ordered_json::array({deep});
  in.extra = {{"x", deep}};
  EXPECT_THROW(chat.render(in), ValueError);
  EXPECT_THROW(ChatTemplate::compile("\xff", "t"), TemplateError);
  EXPECT_THROW(parse_template_json("{\"a\": }"), ValueError);
}

TEST(ChatTemplate, RendersFromSeveralThreads) {
  ChatTemplate chat = ChatTemplate::compile("{% for m in messages %}{{ m | tojson }}{{ ['a', 1] }}{% endfor %}", "t");
  ChatTemplate::Inputs in;
  in.messages = ordered_json::parse(R"([{"role": "user", "content": "Hi"}])");
  std::string expected = chat.render(in).text;
  std::vector<std::thread> threads;
  std::vector<int> same(4, 0);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) same[t] += chat.render(in).text == expected;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(same, std::vector<int>(4, 50));
}

}  // namespace
}  // namespace weft
