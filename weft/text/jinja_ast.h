#pragma once
// The syntax tree of a template. Immutable once parsed, shared by all renderings.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/text/jinja_lexer.h"
#include "weft/text/jinja_value.h"

namespace weft::jinja {

using FilterFunction = Value (*)(Interpreter&, const Value&, Args&);
using TestFunction = bool (*)(Interpreter&, const Value&, Args&);

enum class Op : uint8_t {
  // expressions
  kConst,
  kName,
  kList,
  kTuple,
  kDict,       // kids: key, value, key, value...
  kAttribute,  // kids: object; text
  kItem,       // kids: object, index or slice
  kSlice,      // kids: start, stop, step; each may be null
  kCall,       // kids: callee; call
  kFilter,     // kids: input, null for the innermost filter of a block; call
  kTest,       // kids: input; call
  kCondition,  // kids: test, then, else or null
  kAnd,
  kOr,
  kNot,
  kNegative,
  kPositive,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcat,
  kCompare,         // kids: operands; operators between them
  kNamespaceField,  // target of set: text is the variable, operators[0] the field
  // statements
  kData,
  kPrint,
  kIf,           // kids: tests; bodies: one per test, one more for else
  kFor,          // kids: target, iterable, filter or null; bodies: body, else; flag: recursive
  kSet,          // kids: target, value
  kSetBlock,     // kids: target, filter or null; bodies: body
  kMacro,        // function
  kCallBlock,    // kids: call; function: what caller() runs
  kFilterBlock,  // kids: filter; bodies: body
  kWith,         // kids: target, value, target, value...; bodies: body
  kGeneration,   // bodies: body
  kBreak,
  kContinue,
};

struct Node;
using NodePtr = std::unique_ptr<Node>;
using Body = std::vector<NodePtr>;

struct Call {
  std::vector<NodePtr> positional;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr spread;        // *expression
  NodePtr spread_named;  // **expression
  FilterFunction filter = nullptr;
  TestFunction test = nullptr;
};

struct MacroParts {
  std::vector<std::string> parameters;
  std::vector<NodePtr> defaults;  // for the last parameters
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Node {
  Op op;
  Place place;
  int32_t depth = 1;
  bool flag = false;
  std::string text;
  Value value;
  std::vector<NodePtr> kids;
  std::vector<Body> bodies;
  std::vector<std::string> operators;
  std::unique_ptr<Call> call;
  std::unique_ptr<MacroParts> macro;
};

}  // namespace weft::jinja
