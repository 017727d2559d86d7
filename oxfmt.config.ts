import { defineConfig } from 'oxfmt'

export const DOCUMENTS = { printWidth: 120, proseWrap: 'always', embeddedLanguageFormatting: 'off' } as const

export default defineConfig({
  printWidth: 120,
  semi: false,
  singleQuote: true,
  overrides: [{ files: ['*.md'], options: DOCUMENTS }],
  // what systemd, Redis or others read keeps its own layout
  ignorePatterns: ['**/*', '!**/', '!**/*.ts', '!**/*.js', '!**/*.md', 'dist/', '.tap/', '.stryker/'],
})
