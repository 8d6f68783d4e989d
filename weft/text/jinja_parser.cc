#include "weft/text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "weft/text/jinja_error.h"
#include "weft/text/jinja_expression_parser.h"

namespace weft::jinja {

namespace {

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  NodePtr run() {
    NodePtr root = make(Op::kData, current().place);
    root->bodies.push_back(body({}, "", current().place));
    return root;
  }

 private:
  // Statements up to a tag of `ends`, of which the name is left as the current token. Without `ends` to the end of the template.
  Body body(std::initializer_list<std::string_view> ends, std::string_view tag, Place opened) {
    Nesting guard(*this);
    Body out;
    while (true) {
      const Lexeme& token = current();
      if (token.token == Token::kEnd) {
        if (ends.size() == 0) return out;
        fail(opened, fmt::format("the block '{}' that starts here is never closed; expected {}", tag, join(ends)));
      }
      if (token.token == Token::kData) {
        NodePtr node = make(Op::kData, token.place);
        node->text = token.text;
        advance();
        out.push_back(std::move(node));
      } else if (token.token == Token::kVariableBegin) {
        NodePtr node = make(Op::kPrint, token.place);
        advance();
        add_kid(*node, tuple_or_expression(true));
        expect(Token::kVariableEnd, "'}}'");
        out.push_back(std::move(node));
      } else {
        advance();
        if (current().token == Token::kName && std::find(ends.begin(), ends.end(), current().text) != ends.end()) return out;
        out.push_back(statement(ends, tag));
      }
    }
  }

  static std::string join(std::initializer_list<std::string_view> names) {
    std::string out;
    for (auto name : names) out += fmt::format("{}'{}'", out.empty() ? "" : " or ", name);
    return out;
  }

  void end_tag() { expect(Token::kBlockEnd, "'%}'"); }

  // A body with its own end tag, behind the '%}' of its begin.
  Body closed_body(std::string_view end, std::string_view tag, Place opened) {
    end_tag();
    Body out = body({end}, tag, opened);
    advance();
    end_tag();
    return out;
  }

  NodePtr statement(std::initializer_list<std::string_view> ends, std::string_view tag) {
    Place at = current().place;
    if (current().token != Token::kName) fail(at, "expected the name of a tag behind '{%'");
    std::string name = current().text;
    advance();
    NodePtr node;
    if (name == "if")
      node = if_tag(at);
    else if (name == "for")
      node = for_tag(at);
    else if (name == "set")
      node = set_tag(at);
    else if (name == "macro")
      node = macro_tag(at);
    else if (name == "call")
      node = call_tag(at);
    else if (name == "filter")
      node = filter_tag(at);
    else if (name == "with")
      node = with_tag(at);
    else if (name == "generation")
      node = generation_tag(at);
    else if (name == "print") {
      node = make(Op::kPrint, at);
      add_kid(*node, tuple_or_expression(true));
      end_tag();
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) fail(at, fmt::format("'{}' stands outside of a loop", name));
      node = make(name == "break" ? Op::kBreak : Op::kContinue, at);
      end_tag();
    } else {
      static constexpr std::string_view kUnsupported[] = {"include",    "import", "from",  "extends", "block",
                                                          "autoescape", "do",     "trans", "debug",   "pluralize"};
      if (std::find(std::begin(kUnsupported), std::end(kUnsupported), name) != std::end(kUnsupported)) {
        fail(at, fmt::format("the tag '{}' is not supported in chat templates", name));
      }
      std::string expected = ends.size() == 0 ? "" : fmt::format("; the block '{}' is open, expected {}", tag, join(ends));
      fail(at, fmt::format("unknown tag '{}'{}", name, expected));
    }
    return node;
  }

  NodePtr if_tag(Place at) {
    NodePtr node = make(Op::kIf, at);
    while (true) {
      add_kid(*node, tuple_or_expression(false));
      end_tag();
      add_body(*node, body({"elif", "else", "endif"}, "if", at));
      std::string next = current().text;
      advance();
      if (next == "elif") continue;
      if (next == "else") {
        end_tag();
        add_body(*node, body({"endif"}, "if", at));
        advance();
      }
      end_tag();
      return node;
    }
  }

  NodePtr for_tag(Place at) {
    NodePtr node = make(Op::kFor, at);
    add_kid(*node, target(false));
    expect_name("in");
    add_kid(*node, tuple_or_expression(false));
    add_kid(*node, skip_name("if") ? expression() : nullptr);
    node->flag = skip_name("recursive");
    end_tag();
    ++loops_;
    add_body(*node, body({"else", "endfor"}, "for", at));
    --loops_;
    if (current().text == "else") {
      advance();
      end_tag();
      add_body(*node, body({"endfor"}, "for", at));
    }
    advance();
    end_tag();
    return node;
  }

  NodePtr set_tag(Place at) {
    NodePtr goal = target(true);
    if (skip_operator("=")) {
      NodePtr node = make(Op::kSet, at);
      add_kid(*node, std::move(goal));
      add_kid(*node, tuple_or_expression(true));
      end_tag();
      return node;
    }
    NodePtr node = make(Op::kSetBlock, at);
    add_kid(*node, std::move(goal));
    add_kid(*node, is_operator("|") ? filters(nullptr) : nullptr);
    add_inner_body(*node, "endset", "set", at);
    return node;
  }

  // Loop control does not reach out of a body that is captured as text.
  void add_inner_body(Node& node, std::string_view end, std::string_view tag, Place at) {
    int64_t outer = std::exchange(loops_, 0);
    add_body(node, closed_body(end, tag, at));
    loops_ = outer;
  }

  void parameters(MacroParts& macro) {
    expect_operator("(");
    while (!is_operator(")")) {
      if (!macro.parameters.empty()) {
        expect_operator(",");
        if (is_operator(")")) break;
      }
      Place at = current().place;
      std::string name = expect(Token::kName, "the name of a parameter").text;
      check_assignable(name, at);
      if (std::find(macro.parameters.begin(), macro.parameters.end(), name) != macro.parameters.end()) {
        fail(at, fmt::format("the parameter '{}' is there twice", name));
      }
      macro.parameters.push_back(name);
      if (skip_operator("="))
        macro.defaults.push_back(expression());
      else if (!macro.defaults.empty())
        fail(at, "a parameter without default follows one with a default");
    }
    expect_operator(")");
  }

  void function_body(Node& node, std::string_view end, std::string_view tag, Place at) {
    for (const NodePtr& value : node.macro->defaults) deepen(node, value->depth);
    macros_.push_back(node.macro.get());
    add_inner_body(node, end, tag, at);
    macros_.pop_back();
  }

  NodePtr macro_tag(Place at) {
    NodePtr node = make(Op::kMacro, at);
    node->macro = std::make_unique<MacroParts>();
    Place name_at = current().place;
    node->text = expect(Token::kName, "the name of the macro").text;
    check_assignable(node->text, name_at);
    parameters(*node->macro);
    function_body(*node, "endmacro", "macro", at);
    return node;
  }

  NodePtr call_tag(Place at) {
    NodePtr node = make(Op::kCallBlock, at);
    node->macro = std::make_unique<MacroParts>();
    node->text = "caller";
    if (is_operator("(")) parameters(*node->macro);
    Place call_at = current().place;
    add_kid(*node, expression());
    if (node->kids[0]->op != Op::kCall) fail(call_at, "expected a call behind 'call'");
    function_body(*node, "endcall", "call", at);
    return node;
  }

  NodePtr filter_tag(Place at) {
    NodePtr node = make(Op::kFilterBlock, at);
    add_kid(*node, filters(nullptr, true));
    add_inner_body(*node, "endfilter", "filter", at);
    return node;
  }

  NodePtr with_tag(Place at) {
    NodePtr node = make(Op::kWith, at);
    while (current().token != Token::kBlockEnd) {
      if (!node->kids.empty()) expect_operator(",");
      add_kid(*node, target(false));
      expect_operator("=");
      add_kid(*node, expression());
    }
    add_body(*node, closed_body("endwith", "with", at));
    return node;
  }

  NodePtr generation_tag(Place at) {
    NodePtr node = make(Op::kGeneration, at);
    add_inner_body(*node, "endgeneration", "generation", at);
    return node;
  }

  int64_t loops_ = 0;
};

}  // namespace

NodePtr parse(std::string_view source, const std::string& name) { return Parser(tokenize(source, name), name).run(); }

}  // namespace weft::jinja
