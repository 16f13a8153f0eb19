// A Parquet file of a few columns, uncompressed. Numbers are doubles,
// everything else is text; a missing value is null.
const PARQUET = { double: 5, binary: 6, i32: 5, i64: 6, string: 8, list: 9, struct: 12 };

// Thrift's compact protocol, as far as the footer and the page headers need it.
function encodeVarint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return [...bytes, value];
}
const encodeString = (text) => {
  const bytes = [...new TextEncoder().encode(text)];
  return [...encodeVarint(bytes.length), ...bytes];
};
const encodeInteger = (value) => encodeVarint(2 * value); // zigzag of what is never negative
function encodeList(type, items) {
  return [
    ...(items.length < 15 ? [(items.length << 4) | type] : [0xf0 | type, ...encodeVarint(items.length)]),
    ...items.flat(),
  ];
}
// Fields of a struct: [number, type, encoded value], in order.
function encodeStruct(...fields) {
  let last = 0;
  return [
    ...fields.flatMap(([number, type, bytes]) => {
      const head = ((number - last) << 4) | type;
      last = number;
      return [head, ...bytes];
    }),
    0,
  ];
}

function encodePage(values, isNumber) {
  const present = values.filter((value) => value !== null),
    groups = Math.ceil(values.length / 8);
  const levels = new Uint8Array(groups);
  values.forEach((value, i) => {
    if (value !== null) levels[i >> 3] |= 1 << (i & 7);
  });
  const run = [...encodeVarint(2 * groups + 1), ...levels];
  const parts = [new Uint8Array(new Uint32Array([run.length]).buffer), new Uint8Array(run)];
  if (isNumber) parts.push(new Uint8Array(new Float64Array(present).buffer));
  else
    for (const text of present) {
      const bytes = new TextEncoder().encode(text);
      parts.push(new Uint8Array(new Uint32Array([bytes.length]).buffer), bytes);
    }
  const size = parts.reduce((sum, part) => sum + part.length, 0),
    { i32, struct } = PARQUET;
  const rle = 3,
    header = encodeStruct(
      [1, i32, encodeInteger(0)],
      [2, i32, encodeInteger(size)],
      [3, i32, encodeInteger(size)],
      [
        5,
        struct,
        encodeStruct(
          [1, i32, encodeInteger(values.length)],
          [2, i32, encodeInteger(0)],
          [3, i32, encodeInteger(rle)],
          [4, i32, encodeInteger(rle)],
        ),
      ],
    );
  return { parts: [new Uint8Array(header), ...parts], size: size + header.length };
}

// The parts of the file, for a Blob: columns are {name, values}; numbers and nulls become doubles.
function encodeParquet(columns, numRows) {
  const { double, binary, i32, i64, string, list, struct } = PARQUET,
    magic = new TextEncoder().encode("PAR1");
  const parts = [magic],
    schema = [encodeStruct([4, string, encodeString("schema")], [5, i32, encodeInteger(columns.length)])],
    chunks = [];
  let offset = 4,
    total = 0;
  for (const { name, values } of columns) {
    const isNumber =
      values.every((value) => value === null || typeof value === "number")
      && values.some((value) => value !== null);
    const type = isNumber ? double : binary,
      utf8 = isNumber ? [] : [[6, i32, encodeInteger(0)]];
    const page = encodePage(
      isNumber ? values : values.map((value) => (value === null ? null : String(value))),
      isNumber,
    );
    schema.push(
      encodeStruct(
        [1, i32, encodeInteger(type)],
        [3, i32, encodeInteger(1)],
        [4, string, encodeString(name)],
        ...utf8,
      ),
    );
    const about = encodeStruct(
      [1, i32, encodeInteger(type)],
      [2, list, encodeList(i32, [encodeInteger(0), encodeInteger(3)])],
      [3, list, encodeList(string, [encodeString(name)])],
      [4, i32, encodeInteger(0)],
      [5, i64, encodeInteger(numRows)],
      [6, i64, encodeInteger(page.size)],
      [7, i64, encodeInteger(page.size)],
      [9, i64, encodeInteger(offset)],
    );
    chunks.push(encodeStruct([2, i64, encodeInteger(offset)], [3, struct, about]));
    parts.push(...page.parts);
    offset += page.size;
    total += page.size;
  }
  const group = encodeStruct(
    [1, list, encodeList(struct, chunks)],
    [2, i64, encodeInteger(total)],
    [3, i64, encodeInteger(numRows)],
  );
  const footer = new Uint8Array(
    encodeStruct(
      [1, i32, encodeInteger(1)],
      [2, list, encodeList(struct, schema)],
      [3, i64, encodeInteger(numRows)],
      [4, list, encodeList(struct, [group])],
      [6, string, encodeString("tokenlight")],
    ),
  );
  return [...parts, footer, new Uint8Array(new Uint32Array([footer.length]).buffer), magic];
}
