import { defineConfig } from 'oxlint'

/** Matches a first argument of more than 100 characters. Of a template only the text counts, not its expressions. */
const TOO_LONG =
  ':first-child:matches(Literal[value=/^.{101}/s], TemplateLiteral:has(> TemplateElement[value.raw=/.{101}/s]))'
const TESTS = [
  'CallExpression[callee.name=/^(test|describe)$/]',
  'CallExpression[callee.callee.object.name=/^(test|describe)$/]', // test.each(...)(name)
  'CallExpression[callee.object.name="t"][callee.property.name="test"]',
]
/** Absent is undefined (CONTRIBUTING.md, Results); null is for JSON and for columns of a database. */
const NULL = {
  selector: 'Literal[raw="null"], TSNullKeyword',
  message: 'absent is undefined; null is for JSON, in the files that oxlint.config.ts lists',
}
/** Outcomes differ in `kind` or `ok`, and not in whether a field is there. */
const IN = {
  selector: 'BinaryExpression[operator="in"][left.type="Literal"]',
  message: 'a union differs in `kind` or `ok`; a field of JSON is looked for in the files that oxlint.config.ts lists',
}
/** The rules beside the category `correctness`: those that typescript-eslint calls strict and stylistic. */
const STRICT = [
  'no-array-constructor',
  'no-case-declarations',
  'no-empty',
  'no-empty-function',
  'no-fallthrough',
  'no-prototype-builtins',
  'no-regex-spaces',
  'no-unexpected-multiline',
  'no-useless-assignment',
  'no-useless-constructor',
  'no-var',
  'prefer-const',
  'prefer-rest-params',
  'prefer-spread',
  'preserve-caught-error',
  'typescript/adjacent-overload-signatures',
  'typescript/array-type',
  'typescript/ban-tslint-comment',
  'typescript/class-literal-property-style',
  'typescript/consistent-generic-constructors',
  'typescript/consistent-indexed-object-style',
  'typescript/consistent-type-assertions',
  'typescript/consistent-type-definitions',
  'typescript/dot-notation',
  'typescript/explicit-module-boundary-types',
  'typescript/no-confusing-non-null-assertion',
  'typescript/no-deprecated',
  'typescript/no-dynamic-delete',
  'typescript/no-empty-object-type',
  'typescript/no-explicit-any',
  'typescript/no-extraneous-class',
  'typescript/no-generated-empty-object-type',
  'typescript/no-inferrable-types',
  'typescript/no-invalid-void-type',
  'typescript/no-misused-promises',
  'typescript/no-mixed-enums',
  'typescript/no-namespace',
  'typescript/no-non-null-asserted-nullish-coalescing',
  'typescript/no-require-imports',
  'typescript/no-unnecessary-boolean-literal-compare',
  'typescript/no-unnecessary-condition',
  'typescript/no-unnecessary-template-expression',
  'typescript/no-unnecessary-type-arguments',
  'typescript/no-unnecessary-type-assertion',
  'typescript/no-unnecessary-type-constraint',
  'typescript/no-unnecessary-type-conversion',
  'typescript/no-unnecessary-type-parameters',
  'typescript/no-unsafe-argument',
  'typescript/no-unsafe-assignment',
  'typescript/no-unsafe-call',
  'typescript/no-unsafe-enum-assignment',
  'typescript/no-unsafe-enum-comparison',
  'typescript/no-unsafe-function-type',
  'typescript/no-unsafe-member-access',
  'typescript/no-unsafe-return',
  'typescript/non-nullable-type-assertion-style',
  'typescript/only-throw-error',
  'typescript/prefer-find',
  'typescript/prefer-for-of',
  'typescript/prefer-function-type',
  'typescript/prefer-includes',
  'typescript/prefer-literal-enum-member',
  'typescript/prefer-nullish-coalescing',
  'typescript/prefer-optional-chain',
  'typescript/prefer-promise-reject-errors',
  'typescript/prefer-reduce-type-parameter',
  'typescript/prefer-regexp-exec',
  'typescript/prefer-return-this-type',
  'typescript/prefer-string-starts-ends-with',
  'typescript/related-getter-setter-pairs',
  'typescript/require-await',
  'typescript/unified-signatures',
  'typescript/use-unknown-in-catch-callback-variable',
]
const JSON_FILES = [
  'src/metadata/record.ts', // an untrusted document may be null, or have it in any field
  'src/store/user-data.ts', // the same, for a document on its way into a store
  'src/imdsd/firewall/agent-report.ts', // an untrusted report may be null; no rules are applied: null
  'src/imdsd/journal/encoding.ts', // null: no user-data
  'src/imdsd/operator/server.ts', // `revision` of an instance that is not served
  'src/imdsctl/firewall-agent/agent.ts', // the faults of `imdsctl --json firewall`: `instance` of a fault of the host
  'src/imdsctl/change.ts', // what `imdsctl --json` prints: no seal
  'src/imdsctl/commands.ts', // what `imdsctl --json` prints: no user-data, no revision
  'src/store/document.ts', // a record with its user-data: it has none
  'src/imds-api/{commands/fleet,service/operator}.ts', // a hypervisor that is not drained, and what its daemon has not announced
  'src/imds-api/database/**/*.ts', // a column that may be NULL
  'src/imds-api/resources/**/*.ts', // a representation that has null where a resource has no such value
  'src/imds-api/mail/sender.ts', // a column that may be null
  'src/imds-api/page/page.ts', // a column that may be null
  'src/imds-api/publish/*.ts', // rows, on their way to a record
  'src/imds-api/region/{apply-table,collaborations,credentials,removed,rows,tables}.ts', // rows, on their way to the database
  'src/imds-api/model/{client-limits,time,user-data}.ts', // a column or a field that may be null
  'src/imds-api/auth/secrets.ts', // a client without a secret
  'src/imds-api/auth/{token-endpoint,token-families,tokens}.ts', // a callback; and what was not used or not revoked
  'src/imds-api/compute/{caller,server}.ts', // a closed connection without a certificate; and a representation that has null
  'src/imds-api/http/*.ts', // a body, what it has in it, or what a callback gives, may be null
  'src/imds-api/changes/*.ts', // a column that may be NULL
  'src/imds-api/model/refusal.ts', // `field` of a fault of the whole request
]
/** Those that a file without types cannot obey. */
const TYPED = [
  'typescript/no-unsafe-argument',
  'typescript/no-unsafe-assignment',
  'typescript/no-unsafe-call',
  'typescript/no-unsafe-member-access',
  'typescript/no-unsafe-return',
  'typescript/restrict-template-expressions',
]
/** What a text may not be made of without a conversion. */
const NOT_TEXT = { allowAny: false, allowBoolean: false, allowNullish: false, allowRegExp: false }
const DEFAULT_EXPORT = { selector: 'ExportDefaultDeclaration', message: 'name what you export' }

export default defineConfig({
  plugins: ['eslint', 'typescript'],
  // the rules of ESLint that oxlint itself does not have
  jsPlugins: [{ name: 'eslint-js', specifier: 'oxlint-plugin-eslint' }],
  ignorePatterns: ['dist/', '.stryker/', '.tap/'],
  options: { typeAware: true, typeCheck: true, denyWarnings: true, reportUnusedDisableDirectives: 'error' },
  categories: { correctness: 'error' },
  rules: {
    ...Object.fromEntries(STRICT.map((rule) => [rule, 'error'] as const)),
    'typescript/require-array-sort-compare': 'off', // texts are sorted by their code units
    complexity: ['error', 30], // there is no limit on lines
    'no-unused-vars': ['error', { ignoreRestSiblings: true }],
    'typescript/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
    'typescript/restrict-plus-operands': ['error', { ...NOT_TEXT, allowNumberAndString: false }],
    'typescript/restrict-template-expressions': ['error', { ...NOT_TEXT, allowNever: false, allowNumber: true }],
    'typescript/return-await': ['error', 'error-handling-correctness-only'],
    'typescript/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
  },
  overrides: [
    { files: ['**/*.ts'], rules: { 'eslint-js/no-restricted-syntax': ['error', DEFAULT_EXPORT] } },
    {
      files: ['src/**/*.ts'],
      rules: { 'eslint-js/no-restricted-syntax': ['error', DEFAULT_EXPORT, NULL, IN] },
    },
    { files: JSON_FILES, rules: { 'eslint-js/no-restricted-syntax': ['error', DEFAULT_EXPORT] } },
    { files: ['**/*.js'], rules: Object.fromEntries(TYPED.map((rule) => [rule, 'off'] as const)) },
    { files: ['*.config.ts'], rules: { 'eslint-js/no-restricted-syntax': 'off' } },
    {
      files: ['test/**/*.ts'],
      rules: {
        'eslint-js/no-restricted-syntax': [
          'error',
          DEFAULT_EXPORT,
          {
            selector: TESTS.map((test) => `${test} > ${TOO_LONG}`).join(),
            message: "a test's name has at most 100 characters",
          },
          {
            selector: 'CallExpression[callee.property.name="testdir"]',
            message:
              'use testDirectory of test/support/test-directory.ts, which removes the directory after the teardowns',
          },
        ],
        'typescript/no-floating-promises': 'off', // tap awaits the promises of its tests
        'typescript/unbound-method': 'off', // the methods in test/support are closures
      },
    },
  ],
})
